"""A transformer over long sequences, with attention to a window and to one global token.

The first token of a sequence names one of four ciphers. The network has to translate every other
token by that cipher, also tokens that are a thousand positions away. With a window of 16 tokens and
one global token (as in Longformer and BigBird, 2020), each token has 35 scores, not one for each
other token. The pattern is sparse and no score is kept, so time and memory grow with the length,
not with its square.

    python examples/block_attention.py --plot attention.png
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import spgrad

WORDS, CIPHERS, WIDTH, HEADS = 16, 4, 32, 2


def pattern(length: int, global_tokens: int = 1) -> spgrad.SparseTensor:
    """A window of 16 tokens to each side, and the first tokens with all others."""
    near = spgrad.nn.patterns.band(length, 16)
    if global_tokens == 0:
        return near
    return (near | spgrad.nn.patterns.global_tokens(length, global_tokens)).to_sparse_csr()


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


def milliseconds(function: Callable[..., torch.Tensor], *arrays: torch.Tensor) -> float:
    """The least of three calls, forward and backward."""
    spent = []
    for _ in range(3):
        start = time.perf_counter()
        function(*arrays).sum().backward()
        spent.append(time.perf_counter() - start)
    return 1e3 * min(spent)


def compare(lengths: list[int]) -> list[tuple[int, float, float]]:
    """Attention over the pattern beside torch's with a dense mask, by length."""
    found = []
    for length in lengths:
        q, k, v = (torch.randn(HEADS, length, 16, requires_grad=True) for _ in range(3))
        mask = pattern(length)
        sparse = milliseconds(spgrad.scaled_dot_product_attention, q, k, v, mask)
        full = milliseconds(F.scaled_dot_product_attention, q, k, v, mask.to_dense())
        found.append((length, sparse, full))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Trains, and measures the attention alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="shorter sequences, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    length, steps = (256, 150) if options.quick else (1024, 200)
    print(f"length      {length} tokens, {pattern(length).nse / length:.0f} scores a token")
    curves, found = {}, {}
    for name, tokens in (("window and global token", 1), ("window alone", 0)):
        curves[name], spent = train(pattern(length, tokens), steps)
        found[name] = sum(curves[name][-20:]) / 20
        print(f"{name}: {found[name]:.1f} % of far tokens right, {1e3 * spent:.0f} ms a step")
    print("attention   forward and backward, ms: on the pattern, with a dense mask")
    times = compare([512, 1024] if options.quick else [1024, 2048, 4096])
    for size, sparse, full in times:
        print(f"            {size:5} tokens {sparse:7.1f} {full:8.1f}   {full / sparse:.1f} times")
    good = found["window and global token"] > 95 > 2 * found["window alone"]
    print(f"check       the global token carries the cipher: {'good' if good else 'BAD'}")
    if options.plot:
        draw(options.plot, curves, times)


def draw(path: str, curves: dict[str, list[float]], times: list[tuple[int, float, float]]) -> None:
    """The accuracy in training, and the times."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name, curve in curves.items():
        left.plot(curve, label=name)
    left.set(title="far tokens that are right, %", xlabel="steps", ylim=(0, 100))
    left.legend(loc="center right")
    lengths = [size for size, _, _ in times]
    right.loglog(lengths, [full for _, _, full in times], "o-", label="dense mask")
    right.loglog(lengths, [sparse for _, sparse, _ in times], "o-", label="on the pattern")
    right.set(title="attention, forward and backward, ms", xlabel="tokens")
    right.set_xticks(lengths, lengths)
    right.minorticks_off()
    right.legend()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
