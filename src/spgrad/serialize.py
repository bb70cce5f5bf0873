"""The name under which saved files and pickles find their loader. It never moves."""

from spgrad.torch_protocol.pickling import load

__all__ = ["load"]
