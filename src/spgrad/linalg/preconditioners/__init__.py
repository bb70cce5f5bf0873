"""Approximate inverses that make an iterative solver converge sooner."""
