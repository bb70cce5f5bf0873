"""What torch asks of a SparseTensor: autograd, compile, func, optimizers, pickles, text."""
