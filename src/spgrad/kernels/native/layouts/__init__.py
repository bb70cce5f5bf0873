"""Native kernels that sort indices."""
