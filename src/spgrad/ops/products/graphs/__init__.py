"""Products that layers of graph networks are made of."""
