"""What the native kernels of several families use: which operands torch serves."""
