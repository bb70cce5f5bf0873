"""The machinery between operations and kernels: the only place where layouts meet kernels."""
