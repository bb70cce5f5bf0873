"""Drop-in mode: unchanged `torch.sparse` code on SparseTensors."""

from spgrad.dropin.switch import dropin

__all__ = ["dropin"]
