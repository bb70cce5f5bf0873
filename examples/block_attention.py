"""A transformer over long sequences, with attention to blocks nearby and to one global block.

The first token of a sequence names one of four ciphers. The network has to translate every other
token by that cipher, also tokens that are a thousand positions away. The tokens form blocks of 16.
Each block attends to itself, to its two neighbours and to the first block, and the first block
attends to all (as in BigBird, 2020). So a token has about 80 scores, not one for each other token.
The pattern is sparse, in BSR, and no score is kept: time and memory grow with the length, not with
its square.

    python examples/block_attention.py --plot attention.png
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import spgrad

WORDS, CIPHERS, WIDTH, HEADS, SIZE = 16, 4, 32, 2, 16
"""Size is the number of tokens in a block."""


def pattern(length: int, global_blocks: int = 1) -> spgrad.SparseTensor:
    """Bool BSR (length, length): near blocks, and the first blocks with all others."""
    blocks = spgrad.nn.patterns.band(length // SIZE, 1)
    if global_blocks:
        blocks = blocks | spgrad.nn.patterns.global_tokens(length // SIZE, global_blocks)
    every = torch.ones(blocks.nse, SIZE, SIZE, dtype=torch.bool)
    crow, col = blocks.crow_indices(), blocks.col_indices()
    return spgrad.sparse_bsr_tensor(crow, col, every, (length, length))


class Block(nn.Module):
    """Attention over the pattern, and two linear layers."""

    def __init__(self, mask: spgrad.SparseTensor) -> None:
        super().__init__()
        self.attention = spgrad.nn.SparseAttention(WIDTH, HEADS, pattern=mask, batch_first=True)
        self.between, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.linear = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        h = self.between(x)
        x = x + self.attention(h, h, h)[0]
        return x + self.linear(self.after(x))


class Transformer(nn.Module):
    """Words, two blocks, and scores of words."""

    def __init__(self, mask: spgrad.SparseTensor) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS + CIPHERS, WIDTH)
        self.blocks = nn.Sequential(Block(mask), Block(mask))
        self.read = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the words of the other language, (batch, length, words)."""
        return self.read(self.blocks(self.words(tokens)))


def sequences(batch: int, length: int, ciphers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their translations, both (batch, length)."""
    tokens = torch.randint(WORDS, (batch, length))
    which = torch.randint(CIPHERS, (batch,))
    wanted = ciphers[which[:, None], tokens]
    tokens[:, 0] = WORDS + which
    return tokens, wanted


def train(mask: spgrad.SparseTensor, steps: int) -> tuple[list[float], float]:
    """The share of far tokens that are right, in percent by step, and seconds a step."""
    torch.manual_seed(0)
    ciphers = torch.stack([torch.randperm(WORDS) for _ in range(CIPHERS)])
    model = Transformer(mask)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    curve, start = [], time.perf_counter()
    for _ in range(steps):
        tokens, wanted = sequences(4, mask.shape[0], ciphers)
        scores = model(tokens)[:, 1:]
        loss = F.cross_entropy(scores.flatten(0, 1), wanted[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = (scores.argmax(2) == wanted[:, 1:])[:, mask.shape[0] // 2 :]
        curve.append(100 * right.double().mean().item())
    return curve, (time.perf_counter() - start) / steps


def milliseconds(function: Callable[[], object]) -> float:
    """The least of three calls."""
    spent = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        spent.append(time.perf_counter() - start)
    return 1e3 * min(spent)


def kept(function: Callable[[], torch.Tensor]) -> float:
    """MB of dense tensors that the forward keeps for the backward."""
    sizes = {}

    def note(t: torch.Tensor) -> torch.Tensor:
        sizes[t.data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        function()
    return sum(sizes.values()) / 1e6


class Attention(NamedTuple):
    """Forward and backward of attention to all tokens of one sequence: ms, and MB that are kept."""

    length: int
    sparse: float
    sparse_kept: float
    full: float
    full_kept: float


def compare(lengths: list[int]) -> list[Attention]:
    """Attention over the pattern beside torch's with a dense mask, by length."""
    found = []
    for length in lengths:
        q, k, v = (torch.randn(HEADS, length, 16, requires_grad=True) for _ in range(3))
        mask = pattern(length)
        sparse = partial(spgrad.scaled_dot_product_attention, q, k, v, mask)
        full = partial(F.scaled_dot_product_attention, q, k, v, mask.to_dense())
        found.append(Attention(length, *step(sparse), *step(full)))
    return found


def step(attention: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """Milliseconds of forward and backward, and MB that are kept in between."""
    return milliseconds(lambda: attention().sum().backward()), kept(attention)


def compare_with_flex(length: int) -> str:
    """Forward alone beside flex_attention, which has no gradients on CPUs."""
    from torch.nn.attention import flex_attention as flex

    q, k, v = (torch.randn(1, HEADS, length, 16) for _ in range(3))

    def attends(b: Any, h: Any, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return ((i // SIZE - j // SIZE).abs() <= 1) | (i < SIZE) | (j < SIZE)

    mask, sparse = (
        pattern(length),
        flex.create_block_mask(attends, None, None, length, length, "cpu"),
    )
    ours = milliseconds(lambda: spgrad.scaled_dot_product_attention(q, k, v, mask))
    attend = torch.compile(flex.flex_attention)
    try:
        wanted = attend(q, k, v, block_mask=sparse)
    except Exception as error:  # noqa: BLE001  # compilers raise classes of their own
        return f"flex_attention does not run here: {str(error).splitlines()[0]}"
    torch.testing.assert_close(spgrad.scaled_dot_product_attention(q, k, v, mask), wanted)
    theirs = milliseconds(lambda: attend(q, k, v, block_mask=sparse))
    return f"{length:5} tokens {ours:7.1f} {theirs:8.1f}   {theirs / ours:.1f} times"


def main(arguments: list[str] | None = None) -> None:
    """Trains, and measures the attention alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="shorter sequences, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    length, steps = (256, 150) if options.quick else (1024, 200)
    scores = pattern(length)._nnz() * SIZE**2 / length
    print(f"length      {length} tokens, {scores:.0f} scores a token")
    curves, found = {}, {}
    for name, blocks in (("near and global blocks", 1), ("near blocks alone", 0)):
        curves[name], spent = train(pattern(length, blocks), steps)
        found[name] = sum(curves[name][-20:]) / 20
        print(f"{name}: {found[name]:.1f} % of far tokens right, {1e3 * spent:.0f} ms a step")
    print("attention   forward and backward, ms, and MB kept: on the pattern, with a dense mask")
    times = compare([512, 1024] if options.quick else [1024, 2048, 4096])
    for size, sparse, held, full, full_held in times:
        print(
            f"            {size:5} tokens {sparse:7.1f} {full:8.1f}   {full / sparse:.1f} times;"
            f" {held:5.1f} {full_held:7.1f} MB"
        )
    if not options.quick:
        print("            forward alone, ms: on the pattern, flex_attention")
        print(f"            {compare_with_flex(4096)}")
    good = found["near and global blocks"] > 95 > 2 * found["near blocks alone"]
    print(f"check       the global block carries the cipher: {'good' if good else 'BAD'}")
    if options.plot:
        draw(options.plot, curves, times)


def draw(path: str, curves: dict[str, list[float]], times: list[Attention]) -> None:
    """The accuracy in training, and the times."""
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    for name, curve in curves.items():
        left.plot(curve, label=name)
    left.set(title="far tokens that are right, %", xlabel="steps", ylim=(0, 100))
    left.legend(loc="center right")
    lengths = [row.length for row in times]
    for ax, dense, sparse, title in (
        (middle, "full", "sparse", "attention, forward and backward, ms"),
        (right, "full_kept", "sparse_kept", "kept for the backward, MB"),
    ):
        ax.loglog(lengths, [getattr(row, dense) for row in times], "o-", label="dense mask")
        ax.loglog(lengths, [getattr(row, sparse) for row in times], "o-", label="on the pattern")
        ax.set(title=title, xlabel="tokens")
        ax.set_xticks(lengths, lengths)
        ax.minorticks_off()
        ax.legend()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
