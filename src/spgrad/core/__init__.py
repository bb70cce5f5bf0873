"""What a sparse tensor is: a pattern and its values, how it is made, and what it converts from and to."""
