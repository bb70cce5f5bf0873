"""Triton kernels: the registers and memory of their compiled code, and their speed on a GPU."""
