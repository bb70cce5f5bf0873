"""`python -m spgrad demo`: a graph network that learns the weights of its edges.

Three steps, two files each: train the network, and the same network with given weights (`data`,
`model`); compare one training step of its product with torch.sparse (`compare`, `step`); draw and
report the results (`figure`, `report`).
"""
