"""Products: matrix products, contractions, sampled products, attention."""
