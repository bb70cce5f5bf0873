"""Random numbers that are a function of a key, a line and a draw.

A sample then does not depend on what draws first. It is splitmix64 (Steele, Lea and Flood 2014):
line i starts at mix(mix(key) + i * G), and its draw j is mix(start + (j + 1) * G), modulo 2^64.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
_LOG_2, _SQRT_2 = 0.6931471805599453, 1.4142135623730951
_TERMS = 10


def shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits of unsigned integers."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mixed(z: Tensor) -> Tensor:
    """The step of splitmix64 that spreads each bit over all others."""
    z = (z ^ shifted(z, 30)) * _FIRST
    z = (z ^ shifted(z, 27)) * _SECOND
    return z ^ shifted(z, 31)


def line_starts(key: int, first: int, count: int, like: Tensor) -> Tensor:
    """Where the random numbers of `count` lines begin, whose numbers begin with `first`."""
    lines = first + torch.arange(count, device=like.device)
    return mixed(mixed(torch.full_like(lines, key)) + lines * _GOLDEN)


def draws(start: Tensor, number: Tensor | int) -> Tensor:
    """The random number of a draw, 64 bits, of lines that begin at `start`."""
    return mixed(start + (number + 1) * torch.full_like(start, _GOLDEN))


def below(bits: Tensor, bound: Tensor) -> Tensor:
    """(bits * bound) >> 64: 64 random bits as an integer in [0, bound), where bound < 2^31."""
    high, low = shifted(bits, 32), bits & 0xFFFFFFFF
    return (high * bound + (low * bound >> 32)) >> 32


def minus_log(u: Tensor) -> Tensor:
    """-log(u) for 0 < u <= 1 by operations that every machine rounds alike."""
    m, exponent = torch.frexp(u)
    m, exponent = 2 * m, exponent - 1
    large = m > _SQRT_2
    m, exponent = torch.where(large, 0.5 * m, m), (exponent + large).to(u.dtype)
    s = (m - 1) / (m + 1)
    square = s * s
    series = torch.full_like(s, 1 / (2 * _TERMS - 1))
    for k in range(_TERMS - 2, -1, -1):
        series = series * square + 1 / (2 * k + 1)
    return -(exponent * _LOG_2 + (2 * s) * series)


def parts_of_one(bits: Tensor) -> Tensor:
    """The upper 53 of 64 random bits as a number in [0, 1)."""
    return shifted(bits, 11).double() * 2.0**-53
