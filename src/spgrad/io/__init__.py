"""Sparse tensors in files: SciPy's .npz, Matrix Market, edge lists, and what torch saves."""

from spgrad.io.files import load, save

__all__ = ["load", "save"]
