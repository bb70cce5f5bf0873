"""Saved files and pickles name the loaders in `spgrad.serialize`, so these never move."""

from spgrad.torch_protocol.pickling import load, load_pattern

__all__ = ["load", "load_pattern"]
