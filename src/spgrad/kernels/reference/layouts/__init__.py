"""References of the kernels that check index structures and turn one layout into another."""
