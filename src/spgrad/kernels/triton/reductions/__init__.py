"""Triton kernels of the reductions."""
