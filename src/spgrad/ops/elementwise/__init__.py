"""Functions of single elements, of one sparse tensor or of two."""
