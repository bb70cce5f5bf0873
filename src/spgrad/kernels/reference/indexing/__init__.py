"""References of the kernels that select entries by their indices."""
