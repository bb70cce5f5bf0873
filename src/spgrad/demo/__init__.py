"""`python -m spgrad demo`: a graph network that learns the weights of its edges.

Three steps, a file each: train it beside the same network with given weights (`data`, `model`),
measure one training step of its product against torch.sparse (`compare`, `step`), and draw and
report the results (`figure`, `report`).
"""
