"""Sums, extrema, norms and softmax over dimensions."""
