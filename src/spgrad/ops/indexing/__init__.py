"""Parts of a sparse tensor, taken or written."""
