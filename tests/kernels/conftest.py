"""With this file pytest finds `operands.py` for the tests in the folder below, too."""
