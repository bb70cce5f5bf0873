"""Patterns that change while a module is trained."""

from spgrad.nn.sparsity.growing import SET, RigL
from spgrad.nn.sparsity.moving import move
from spgrad.nn.sparsity.pruning import GradualMagnitude

__all__ = ["SET", "GradualMagnitude", "RigL", "move"]
