"""Saved files and pickles name `spgrad.serialize.load` as their loader, so it never moves."""

from spgrad.torch_protocol.pickling import load

__all__ = ["load"]
