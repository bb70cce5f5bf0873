"""Eigenvalues, singular values, and functions of them."""
