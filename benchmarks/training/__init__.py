"""Epochs of the programs in `examples/`, beside the same model made of other libraries."""
