"""References of products whose dense operands have rows for columns."""
