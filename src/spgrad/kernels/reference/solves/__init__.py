"""References of triangular substitution and of incomplete factorisations."""
