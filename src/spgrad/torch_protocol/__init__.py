"""What torch asks of a SparseTensor: autograd, compile, func transforms, optimizers, pickles, text."""
