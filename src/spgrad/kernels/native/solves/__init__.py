"""Native substitution."""
