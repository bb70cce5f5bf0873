"""How kernels read memory: a choice that never changes a result."""
