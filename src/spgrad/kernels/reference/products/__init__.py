"""References of the products of sparse matrices with dense and with sparse ones."""
