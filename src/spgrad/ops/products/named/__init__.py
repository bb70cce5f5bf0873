"""Products summed over named dimensions."""
