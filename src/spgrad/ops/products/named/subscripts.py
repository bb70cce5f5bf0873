"""The subscripts of an Einstein sum: which dimension of which operand has which label."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.errors import ArgumentKindError, ArgumentValueError

Labels = tuple[str, ...]
"""One label for each dimension: a letter, or a dot and the place in an ellipsis from the right."""


class Subscripts(NamedTuple):
    """The labels of every operand, and of the result."""

    operands: tuple[Labels, ...]
    result: Labels


def as_equation(args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Equation and operands of a call in either form that `torch.einsum` takes."""
    if len(args) < 2:
        raise ArgumentValueError(
            f"`equation` and `operands` are {len(args)} argument(s); an equation "
            'and one or more operands are accepted. For example "ij,jk->ik", A, B.'
        )
    if not isinstance(args[0], torch.Tensor):
        equation, operands = args[0], args[1:]
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
        if not isinstance(equation, str):
            raise ArgumentKindError(
                f"`equation` is {checks.describe_kind(equation)}; a str, or an "
                'operand and its list of subscripts, is accepted. For example "ij,jk->ik".'
            )
        return equation, operands
    equation = ",".join(_spelled(given) for given in args[1::2])
    if len(args) % 2:
        return f"{equation}->{_spelled(args[-1])}", args[:-1:2]
    return equation, args[::2]


def _spelled(given: Any) -> str:
    if not isinstance(given, (list, tuple)):
        raise ArgumentKindError(
            f"subscripts are {checks.describe_kind(given)}; a list of ints for each operand is "
            "accepted. For example [0, 1]."
        )
    for s in given:
        if s is not Ellipsis and not (isinstance(s, int) and 0 <= s < 52):
            raise ArgumentValueError(
                f"subscripts have {s!r}; ints from 0 to 51 and `...` are accepted. Number the "
                "dimensions from 0."
            )
    return "".join(
        "..." if s is Ellipsis else chr(ord("A") + s if s < 26 else ord("a") + s - 26)
        for s in given
    )


@functools.lru_cache(maxsize=256)
def parse(equation: str, ranks: tuple[int, ...]) -> Subscripts:
    """The labels of operands with so many dimensions, and of the result."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    given = left.split(",")
    if len(given) != len(ranks):
        raise _bad_equation(
            equation, f"names {len(given)} operand(s)", f"{len(ranks)}, as are given,"
        )
    operands = tuple(
        _of_operand(equation, i, part, rank)
        for i, (part, rank) in enumerate(zip(given, ranks, strict=True))
    )
    counts: dict[str, int] = {}
    for labels in operands:
        for label in labels:
            counts[label] = counts.get(label, 0) + 1
    dots = sorted((s for s in counts if s[0] == "."), key=lambda s: -int(s[1:]))
    if not arrow:
        once = sorted(s for s, n in counts.items() if n == 1 and s[0] != ".")
        return Subscripts(operands, (*dots, *once))
    result = _labels_of(equation, right, tuple(dots))
    for label in result:
        if label not in counts:
            raise _bad_equation(
                equation, f"has {label!r} in the result alone", "a label of an operand"
            )
        if result.count(label) > 1:
            raise _bad_equation(equation, f"has {label!r} twice in the result", "each label once")
    return Subscripts(operands, result)


def _of_operand(equation: str, i: int, part: str, rank: int) -> Labels:
    letters = len(part.replace("...", ""))
    if letters > rank or (letters < rank and "..." not in part):
        raise _bad_equation(
            equation,
            f"has {letters} label(s) for `operands[{i}]` of {rank} dimension(s)",
            "one label for each dimension, or `...` for those without,",
        )
    return _labels_of(equation, part, tuple(f".{r}" for r in reversed(range(rank - letters))))


def _labels_of(equation: str, part: str, dots: Labels) -> Labels:
    if not re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", part):
        raise _bad_equation(
            equation, f"has {part!r}", "letters and at most one `...` for each operand"
        )
    before, ellipsis, after = part.partition("...")
    return (*before, *(dots if ellipsis else ()), *after)


def _bad_equation(equation: str, says: str, accepted: str) -> ArgumentValueError:
    return ArgumentValueError(
        f'`equation` {says} ({equation!r}); {accepted} is accepted. For example "...ij,jk->...ik".'
    )
