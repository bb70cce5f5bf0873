"""What operations compute, said with dense tensors, where torch has no such function."""
