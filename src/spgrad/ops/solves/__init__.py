"""Triangular substitution and incomplete factorisations."""
