"""Conversions between layouts and to and from dense, coalesce, transposition."""
