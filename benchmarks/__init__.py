"""Paired benchmarks of spgrad against other libraries: ``python -m benchmarks``."""
