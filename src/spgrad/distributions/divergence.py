"""The Kullback-Leibler divergence of two multivariate normals with sparse parameters."""

from __future__ import annotations

from typing import cast

import torch
from torch.distributions.kl import register_kl

from spgrad import linalg
from spgrad.core.checks import broadcast_shapes
from spgrad.core.tensor import SparseTensor
from spgrad.distributions.normal import SparseMultivariateNormal
from spgrad.errors import ArgumentValueError
from spgrad.ops import broadcast_to, matmul, mul
from spgrad.ops import sum as total
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import in_given_precision


@register_kl(SparseMultivariateNormal, SparseMultivariateNormal)
@public_as("distributions.kl_divergence")
@in_given_precision
def _divergence(p: SparseMultivariateNormal, q: SparseMultivariateNormal) -> torch.Tensor:
    """(tr(Sq^-1 Sp) + v^T Sq^-1 v - m + log det Sq - log det Sp) / 2 with v = mp - mq."""
    if p.event_shape != q.event_shape:
        raise ArgumentValueError(
            f"`q` has event shape {tuple(q.event_shape)}; {tuple(p.event_shape)}, that of `p`, is "
            "accepted. Both are distributions of vectors of one length."
        )
    try:
        broadcast_shapes(p.batch_shape, q.batch_shape)
    except RuntimeError:
        raise ArgumentValueError(
            f"`q` has batch shape {tuple(q.batch_shape)}; a batch that broadcasts with "
            f"{tuple(p.batch_shape)}, that of `p`, is accepted. Batch sizes are equal, or one of "
            "them is 1 or missing."
        ) from None
    if p.loc.device != q.loc.device:
        raise ArgumentValueError(
            f"`q` is on {q.loc.device.type}; {p.loc.device.type}, where `p` is, is accepted. Make "
            "both on one device."
        )
    own, other = p._parameter, q._parameter
    determinants = other.half_log_det() - own.half_log_det()
    apart = _quadratic(q, p.loc - q.loc) + _trace(p, q) - p.event_shape[0]
    return determinants + 0.5 * apart


def _quadratic(q: SparseMultivariateNormal, v: torch.Tensor) -> torch.Tensor:
    return q._parameter.quadratic(v)


def _trace(p: SparseMultivariateNormal, q: SparseMultivariateNormal) -> torch.Tensor:
    """tr(Sq^-1 Sp) by sparse products, and elements of an inverse at a sparse pattern."""
    matrices = p._parameter.matrix(), q._parameter.matrix()
    dtype = torch.promote_types(*(A.dtype for A in matrices))
    P, Q = (cast(SparseTensor, A.to(dtype)) for A in matrices)
    if P._pattern.batch != Q._pattern.batch:
        batch = torch.broadcast_shapes(P._pattern.batch, Q._pattern.batch)
        P, Q = (broadcast_to(A.to_sparse_csr(), (*batch, *A._pattern.matrix)) for A in (P, Q))
    of_p, of_q = p._parameter.precision, q._parameter.precision
    if of_p and not of_q:
        return linalg.inverse_diagonal(matmul(P, Q)).sum(-1)  # Sq^-1 Sp is (Sp^-1 Sq)^-1
    if of_q and not of_p:
        return total(mul(Q, P), (-2, -1))
    inverted, kept = (P, Q) if of_p else (Q, P)
    found = linalg.inverse_at(inverted, kept.pattern, assume="positive definite")
    return total(mul(kept, found), (-2, -1))
