"""Native kernels that reduce the entries of each segment to one number."""
