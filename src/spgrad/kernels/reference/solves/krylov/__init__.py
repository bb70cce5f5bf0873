"""References of the vectors and scalars of Krylov methods."""
