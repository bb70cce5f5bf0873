"""Sparse tensors from sizes, from random numbers, from others, and from edges of a graph."""
