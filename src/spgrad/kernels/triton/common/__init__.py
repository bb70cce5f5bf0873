"""What the Triton kernels share: lines of a view, shapes of tiles, launches."""
