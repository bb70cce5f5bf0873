"""Shapes and layouts that reductions are tried on."""

from spgrad import support

OF_ALL = {"matrix": ((4, 6), 0), "batch": ((3, 4, 6), 0), "hybrid": ((4, 6, 3, 2), 2)}
OF_COO = {"vector": ((7,), 0), "wide_vector": ((5, 3), 1), "cube": ((2, 3, 4, 2), 0)}
SHAPES = OF_ALL | OF_COO
"""Each with its number of dense dimensions."""
CASES = [(shape, layout) for shape in OF_ALL for layout in support.ALL]
CASES += [(shape, "coo") for shape in OF_COO]
