"""References of the kernels that draw samples of lines."""
