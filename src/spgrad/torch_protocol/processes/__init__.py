"""What programs of several processes ask of a SparseTensor: collectives, checkpoints, loaders."""
