"""Native kernels of matrix products."""
