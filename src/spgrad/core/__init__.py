"""What a sparse tensor is: a pattern and its values, its constructors, other libraries' forms."""
