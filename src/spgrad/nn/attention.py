"""Attention of a transformer over a sparse pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from spgrad.core import checks
from spgrad.core.refusals import refuse_script
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError, UnsupportedError
from spgrad.lowering.operands import dense_operand, sparse_operand
from spgrad.nn.attention_weights import attention_with_weights
from spgrad.nn.causal import causal_part
from spgrad.nn.graph.operands import with_numbers
from spgrad.nn.padding import added_to_scores, padded_attention
from spgrad.ops.products.attention import scaled_dot_product_attention, true_part
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import converts


class SparseAttention(nn.Module):
    """torch.nn.MultiheadAttention in which a query attends only to keys that a pattern specifies.

    Weights have the names and the initial distribution of torch's module. So each of the two loads
    the `state_dict` of the other, and SparseAttention may replace torch's module in torch's
    transformer layers.

    Args:
        embed_dim: Features of a query and of the result.
        num_heads: Number of heads, a divisor of `embed_dim`.
        dropout: Share of the attention weights that is set to zero in training; it needs memory
            for all of them.
        bias: False leaves out the biases.
        pattern: Sparse (L, S) of any layout, as `spgrad.nn.patterns` makes them; or a function
            that is called for each input and makes a pattern from the number of queries. Values of
            another dtype than bool are added to the scores; a hybrid (L, S | num_heads) has values
            for each head. With None, each call passes `attn_mask`.
        causal: Leaves out the elements of the pattern above the diagonal.
        kdim: Features of a key; `embed_dim` by default.
        vdim: Features of a value; `embed_dim` by default.
        batch_first: Inputs are (batch, length, features) in place of (length, batch, features).
        device: Of the weights.
        dtype: Of the weights.
        add_bias_kv: Only False is accepted. In its place, join a parameter to `key` and `value`,
            and a column to the pattern.
        add_zero_attn: Only False is accepted. In its place, join zeros in the same way.

    Shapes:
        query (L, B, embed_dim), key (S, B, kdim), value (S, B, vdim), or without B; the result is
        as the query. With `batch_first`, B comes first.

    Gradient:
        Of query, key, value and the weights, and of a pattern, unless it is bool, at its elements.

    Cost:
        O(nse embed_dim B) time besides the linear layers, and memory for the result: scores are
        never stored (`spgrad.scaled_dot_product_attention`). A `key_padding_mask` takes nse B
        numbers, and weights that are asked for take nse B num_heads. torch.compile makes one graph
        of it, also where it calls a function for `pattern`, unless that function reads numbers of a
        tensor. A causal pattern stays in blocks of 64 rows and columns or more if six tenths of
        their elements take part, and in smaller ones if more do; others become CSR.

    Raises:
        TypeError: The pattern is not sparse or an input not dense.
        ValueError: Sizes or dtypes don't fit, or there is no pattern.

    Source:
        Child, Gray, Radford, Sutskever 2019, "Generating Long Sequences with Sparse Transformers".

    Example:
        >>> from spgrad.nn import patterns
        >>> pattern = patterns.band(6, 2) | patterns.global_tokens(6, 1)
        >>> layer = spgrad.nn.SparseAttention(8, 2, pattern=pattern, causal=True, batch_first=True)
        >>> x = torch.ones(3, 6, 8)
        >>> y, _ = layer(x, x, x)
        >>> y.shape
        torch.Size([3, 6, 8])
    """

    pattern: SparseTensor | None
    _qkv_same_embed_dim = False
    """torch's encoder layers then call this module, and not a kernel of their own."""

    __prepare_scriptable__ = refuse_script

    @public_as("nn.SparseAttention")
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        pattern: torch.Tensor | Callable[[int], torch.Tensor] | None = None,
        causal: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
    ) -> None:
        super().__init__()
        for name, asked in {"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn}.items():
            if asked:
                raise UnsupportedError(
                    f"`{name}` is {asked!r}; False is accepted. Join a row to `key` and `value`, "
                    "and a column to the pattern with spgrad.cat."
                )
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "kdim": kdim, "vdim": vdim}
        for name, size in sizes.items():
            if size is not None:
                checks.require_number(name, size, "Such as 8.", least=1, whole=True)
        checks.require_number("dropout", dropout, "Leave it out for none.")
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ArgumentValueError(
                f"`num_heads` is {num_heads} for {embed_dim} features; a divisor is accepted. Each "
                "head takes as many of them."
            )
        if not 0 <= dropout < 1:
            raise ArgumentValueError(
                f"`dropout` is {dropout!r}; numbers from 0 to 1 are accepted, 1 is not. Leave it "
                "out for none."
            )
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.causal, self.batch_first = causal, batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._make: Callable[[int], torch.Tensor] | None = None
        given = None
        if pattern is not None and not isinstance(pattern, torch.Tensor) and callable(pattern):
            self._make = pattern
        elif pattern is not None:
            given = self._given(sparse_operand("pattern", pattern))
        self.register_buffer("pattern", given, persistent=False)
        self._make_weights(bias, {"device": device, "dtype": dtype})

    def _make_weights(self, bias: bool, made: dict[str, Any]) -> None:
        n = self.embed_dim
        self.in_proj_weight = self.q_proj_weight = None
        self.k_proj_weight = self.v_proj_weight = None
        if self.kdim == self.vdim == n:
            self.in_proj_weight = nn.Parameter(torch.empty(3 * n, n, **made))
        else:
            self.q_proj_weight = nn.Parameter(torch.empty(n, n, **made))
            self.k_proj_weight = nn.Parameter(torch.empty(n, self.kdim, **made))
            self.v_proj_weight = nn.Parameter(torch.empty(n, self.vdim, **made))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * n, **made)) if bias else None
        self.out_proj = nn.Linear(n, n, bias=bias, **made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew, as torch.nn.MultiheadAttention draws its own."""
        self.out_proj.reset_parameters()
        for name, weight in self.named_parameters(recurse=False):
            nn.init.zeros_(weight) if name == "in_proj_bias" else nn.init.xavier_uniform_(weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = False,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, SparseTensor | None]:
        """Attention of the queries, and the weights or None, as torch's module returns them.

        Weights are a SparseTensor on the pattern of the mask. Items of a batch and heads are its
        dense dimensions: (L, S | B), or (L, S | B, num_heads) without the average; B is missing
        where the queries have none. With dropout some of them are 0 and the others larger.

        Args:
            query: Dense (L, B, embed_dim), (L, embed_dim), or (B, L, embed_dim) if `batch_first`.
            key: Likewise, S in place of L.
            value: Likewise, S in place of L.
            key_padding_mask: Dense (B, S), or (S,) without B: True where an item has no such key,
                or floating numbers that are added to the scores of a key.
            need_weights: Returns the weights, which have their gradient. Unlike torch's, it is
                False by default, because weights that are not asked for are never stored. In code
                of torch.compile, the loss has to depend on them, or they have to be detached.
            attn_mask: Sparse (L, S) or hybrid (L, S | num_heads), used in place of the pattern of
                the module.
            average_attn_weights: Returns the mean of the weights over the heads.
            is_causal: Leaves out the elements above the diagonal, as `causal` does.
        """
        options = {"padding": key_padding_mask, "need_weights": need_weights}
        options["average_attn_weights"] = average_attn_weights
        return self._forward(query, key, value, attn_mask, is_causal, options)

    @public_as("nn.SparseAttention")  # not on `forward`, where torch.compile starts tracing
    def _forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        is_causal: bool,
        options: dict[str, Any],
    ) -> tuple[torch.Tensor, SparseTensor | None]:
        self._require(query, key, value)
        for flag in ("need_weights", "average_attn_weights"):
            checks.require_bool(flag, options[flag])
        batched = query.dim() == 3
        length = query.shape[1 if batched and self.batch_first else 0]
        mask = self._mask(attn_mask, length, is_causal)
        q, k, v = (self._by_head(t) for t in self._projected(query, key, value))
        if mask.dtype != torch.bool and converts(q):
            mask = mask.to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        padding, weights = options["padding"], None
        if options["need_weights"]:
            added = None
            if padding is not None:
                items = q.shape[0] if batched else 1
                added = added_to_scores(padding, (items, k.shape[-2]), q.dtype)
            average = options["average_attn_weights"]
            y, weights = attention_with_weights(q, k, v, mask, added, dropout, average)
        elif padding is None:
            y = scaled_dot_product_attention(q, k, v, mask, dropout)  # (B, heads, L, d)
        else:
            y = padded_attention(q, k, v, mask, padding, dropout)
        y = y.movedim(-2, 1 if self.batch_first else 0) if batched else y.movedim(-2, 0)
        return self.out_proj(y.flatten(-2)), weights

    def _require(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        sizes = self.embed_dim, self.kdim, self.vdim
        rank = query.dim() if isinstance(query, torch.Tensor) else 0
        given = {"query": query, "key": key, "value": value}
        for (name, t), size in zip(given.items(), sizes, strict=True):
            dense_operand(name, t)
            if t.dim() not in (2, 3) or t.dim() != rank or t.shape[-1] != size:
                order = "(batch, length" if self.batch_first else "(length, batch"
                accepted = f"{order}, {size}) or (length, {size}), of one rank for all,"
                hint = "Features follow from the layer."
                raise checks.bad_shape(name, tuple(t.shape), accepted, hint)

    def _mask(self, attn_mask: Any, length: int, is_causal: bool) -> SparseTensor:
        if attn_mask is not None:
            name, found = "attn_mask", attn_mask
        elif self._make is not None:
            name, found = "pattern", self._make(length)
        elif self.pattern is not None:  # `_given` has left out what `causal` leaves out
            return causal_part(self.pattern) if is_causal and not self.causal else self.pattern
        else:
            raise ArgumentValueError(
                "`attn_mask` is None; a sparse (L, S) is accepted. Give one, or make the layer "
                "with a pattern."
            )
        if not isinstance(found, SparseTensor):
            # torch.compile can't read the pattern of an operation's result
            found = sparse_operand(name, found)
        if found.dim() < 2:
            hint = "It has a row for each query and a column for each key."
            raise checks.bad_shape(name, tuple(found.shape), "(L, S) or (L, S | num_heads)", hint)
        return causal_part(found) if is_causal or self.causal else found

    def _given(self, pattern: SparseTensor) -> SparseTensor:
        """The pattern as the module keeps it: without bool elements that are False."""
        pattern = causal_part(pattern) if self.causal else pattern
        known = pattern.dtype == torch.bool and not pattern.is_meta
        return true_part(pattern) if known else pattern

    def _projected(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        if self.in_proj_weight is None:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        elif query is key and key is value:
            return F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        inputs = query, key, value
        return tuple(F.linear(*call) for call in zip(inputs, weights, biases, strict=True))  # type: ignore[arg-type]

    def _by_head(self, t: torch.Tensor) -> torch.Tensor:
        """(B, heads, length, d), or (heads, length, d) without a batch."""
        t = t.unflatten(-1, (self.num_heads, -1))
        if t.dim() == 4 and not self.batch_first:
            t = t.transpose(0, 1)
        return t.transpose(-3, -2)

    def _apply(self, fn: Any, recurse: bool = True) -> SparseAttention:
        old = self.pattern
        super()._apply(fn, recurse)
        if old is not None and self.pattern is not None:
            self.pattern = with_numbers(self.pattern, old)
        return self

    def extra_repr(self) -> str:
        """What `repr` shows of the layer."""
        return f"{self.embed_dim}, num_heads={self.num_heads}, causal={self.causal}"
