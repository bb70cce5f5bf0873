"""What references of all families use, and the memory that kernels keep."""
