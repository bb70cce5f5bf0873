"""What Dynamo, which reads Python bytecode for torch.compile, is told of a SparseTensor."""
