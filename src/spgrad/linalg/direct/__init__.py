"""Factorisations of a sparse matrix by other packages."""
