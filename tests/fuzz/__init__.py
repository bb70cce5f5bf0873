"""Random programs of the operations of the support table, compared with dense torch.

`python -m fuzz 100000 --seed 7`, with `tests` on the path, or `make fuzz N=100000 SEED=7`.
"""
