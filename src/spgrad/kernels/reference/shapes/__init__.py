"""References of the kernels that build new lines out of old ones."""
