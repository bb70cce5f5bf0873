"""Solvers in the benchmarks: matrices, formulas and contenders."""
