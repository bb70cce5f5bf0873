"""References of the kernels that merge two patterns, move values onto the result, and scale."""
