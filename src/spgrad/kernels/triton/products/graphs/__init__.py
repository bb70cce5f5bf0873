"""Triton kernels of products that layers of graph networks are made of."""
