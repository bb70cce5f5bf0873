"""Ways to solve A x = b, each a frozen dataclass of options."""
