"""Triton kernels of the products."""
