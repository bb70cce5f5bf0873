"""Differentiable products with a dense operand, on values."""
