"""Kernels on GPUs: what their compiled code takes, and how fast they are where there is a GPU."""
