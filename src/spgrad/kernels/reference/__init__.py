"""Pure torch: the contract of every kernel, and what answers where no faster backend does."""
