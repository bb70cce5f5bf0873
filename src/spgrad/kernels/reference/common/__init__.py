"""What the references of several families use, and the memory that kernels keep."""
