"""Sums and norms of sharded matrices, and the names of torch that they answer to."""
