"""The command line: the demo, the support table, what is in a file, what is installed."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from spgrad import kernels
from spgrad.errors import SpgradError
from spgrad.support import ALL, OPS, Op


class _Parser(argparse.ArgumentParser):
    """An argument parser whose error is one line, in the wording of spgrad's errors."""

    def error(self, message: str) -> NoReturn:
        argument = re.sub(r"^argument ([^\s/:]+)[^:]*: ", r"`\1` ", message)
        argument = argument.replace("expected one argument", "has no value; one value is accepted.")
        self.exit(2, f"{self.prog}: {argument}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: The words after the program's name; None takes those of the process.

    Returns:
        The exit status: 0; 1 if a package is not installed, or the command was interrupted; 2 for
        a wrong argument.
    """
    parser = _parser()
    try:
        options = parser.parse_args(argv)
    except SystemExit as end:  # argparse ends the process; a caller of this function wants a number
        return int(end.code or 0)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        options.run(options)
        sys.stdout.flush()
    except SpgradError as error:
        said = error if error.function else error.args[0]
        print(f"spgrad {options.command}: {said}", file=sys.stderr)
        return 1 if isinstance(error, ImportError) else 2
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"spgrad {options.command}: interrupted.", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    package = importlib.import_module("spgrad")  # by name, because imports only point down
    parser = _Parser("spgrad", description=package.__doc__)
    parser.add_argument("--version", action="version", version=f"spgrad {package.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    ops = commands.add_parser("ops", help="print what works: operations, layouts, gradients")
    ops.add_argument("--markdown", action="store_true", help="as a Markdown table")
    ops.add_argument(
        "--kernels", action="store_true", help="which backend runs each kernel on CPU and CUDA here"
    )
    ops.set_defaults(run=_ops)
    info = commands.add_parser(
        "info", help="print what is in a file: sizes, row lengths, symmetry, memory, the pattern"
    )
    suffixes = ".npz, .mtx, .csv, .tsv, .txt, .pt, .pth, .h5, .hdf5 or .safetensors"
    info.add_argument("file", type=Path, help=f"a {suffixes} file")
    info.add_argument("--png", type=Path, metavar="OUT", help="a picture to write")
    info.add_argument(
        "--kernels", action="store_true", help="how A x reads memory on this machine, and why"
    )
    info.set_defaults(run=_info)
    versions = commands.add_parser(
        "versions", help="print what a report of a bug needs: versions, processor, kernels"
    )
    versions.set_defaults(run=_versions)
    demo = commands.add_parser(
        "demo", help="train a graph network that learns its edge weights, beside torch.sparse"
    )
    demo.add_argument("--epochs", type=_whole(1), default=200, help="steps of training (200)")
    demo.add_argument("--seed", type=_whole(0), default=0, help="the first seed (0)")
    demo.add_argument("--seeds", type=_whole(1), help="number of seeds (5; 2 if uncompiled)")
    demo.add_argument(
        "--out", type=Path, default=Path("spgrad-demo.png"), help="the picture to write"
    )
    demo.add_argument("--data", type=Path, help="your own graph, .npz or .mtx (default: Cora)")
    demo.add_argument("--device", default="cpu", help="where to train, such as cuda (cpu)")
    demo.set_defaults(run=_demo)
    return parser


def _whole(least: int) -> Callable[[str], int]:
    """A parser of whole numbers from `least` on, with at most 18 digits, so that they fit int64."""

    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?\d{1,18}", text) and int(text) >= least:
            return int(text)
        raise argparse.ArgumentTypeError(
            f"is {text}; a whole number of at least {least} is accepted. Give one, or leave it out."
        )

    return parse


def _demo(options: argparse.Namespace) -> None:
    from spgrad.demo.report import run

    run(
        options.data,
        options.out,
        epochs=options.epochs,
        seed=options.seed,
        seeds=options.seeds,
        device=options.device,
    )


def _info(options: argparse.Namespace) -> None:
    from spgrad.info import run

    plain = not _prints(sys.stdout.encoding, "×⠿█")
    print(run(options.file, options.png, plain=plain, kernels=options.kernels))


def _versions(options: argparse.Namespace) -> None:
    from spgrad.versions import show_versions

    show_versions()


def _prints(encoding: str | None, characters: str) -> bool:
    """Tells whether an output with this encoding can print these characters."""
    try:
        characters.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _ops(options: argparse.Namespace) -> None:
    if options.kernels:
        print(markdown_kernels() if options.markdown else plain_kernels())
    else:
        print(markdown_table() if options.markdown else plain_table())


_DEVICES = "CPU", "CUDA", "elsewhere"
KERNELS_LEGEND = (
    "compiled: the C++ library; triton: Triton; native: torch's own sparse kernels; "
    "reference: plain torch. Triton and native kernels hand operands that they do "
    "not take to the next of these. On CUDA without Triton, and on the CPU without the library, "
    "native kernels answer, or references."
)


def plain_kernels() -> str:
    """Which backend answers for each kernel in this process, for a terminal."""
    found = kernels.answering()
    width = max(map(len, found))
    lines = [f"{'kernel':{width}}  {'CPU':9}  {'CUDA':9}  elsewhere"]
    for name, by in found.items():
        cpu, cuda, elsewhere = (by[device] for device in _DEVICES)
        lines.append(f"{name:{width}}  {cpu:9}  {cuda:9}  {elsewhere}")
    return "\n".join([*lines, "", KERNELS_LEGEND])


def markdown_kernels() -> str:
    """Which backend answers for each kernel in this process, as Markdown of the documents."""
    lines = ["| kernel | CPU | CUDA | elsewhere |", "|---|---|---|---|"]
    for name, by in kernels.answering().items():
        lines.append(f"| `{name}` | {' | '.join(by[device] for device in _DEVICES)} |")
    return "\n".join([*lines, "", KERNELS_LEGEND])


def plain_table(rows: Iterable[Op] = OPS.values()) -> str:
    """The support table for a terminal: a line for each operation, its signatures under it."""
    offered, refused = _split(rows)
    width = max(len(row.name) for row in offered)
    lines = [f"{'operation':{width}}  {'  '.join(ALL)}  gradient  torch"]
    for row in offered:
        marks = "  ".join(f"{mark:3}" for mark in _marks(row))
        lines.append(
            f"{row.name:{width}}  {marks}  {_order(row):8}  {', '.join(row.torch)}".rstrip()
        )
        lines += [f"    {signature}" for signature in row.signatures]
    return "\n".join([*lines, "", LEGEND, *_reasons(offered), *_refusals(refused, "")])


def markdown_table(rows: Iterable[Op] = OPS.values()) -> str:
    """The support table as the Markdown of the documents."""
    offered, refused = _split(rows)
    lines = [
        f"| operation | {' | '.join(ALL)} | gradient | operands and result | torch |",
        f"|---|{':-:|' * len(ALL)}---|---|---|",
    ]
    for row in offered:
        forms = "<br>".join(f"`{signature}`" for signature in row.signatures).replace("|", r"\|")
        names = ", ".join(f"`{name}`" for name in row.torch)
        marks = " | ".join(_marks(row))
        lines.append(f"| `{row.name}` | {marks} | {_order(row)} | {forms} | {names} |")
    reasons = [f"* {line}" for line in [*_reasons(offered), *_refusals(refused, "`")]]
    return "\n".join([*lines, "", LEGEND, *([""] * bool(reasons)), *reasons])


def _split(rows: Iterable[Op]) -> tuple[list[Op], list[Op]]:
    """The rows that work in at least one layout, and the rows that work in none."""
    rows = list(rows)
    return [row for row in rows if row.layouts], [row for row in rows if not row.layouts]


def _marks(row: Op) -> list[str]:
    return ["x" if layout in row.layouts else "-" for layout in ALL]


LEGEND = (
    "x: works for sparse operands of this layout; -: raises `UnsupportedError`. Upper case is "
    "sparse, lower case dense; dense dimensions of a sparse tensor stand behind a bar; s[], p[] "
    "and n[] are numbers or 0-d tensors; values of P, F and p are positive, those of n negative, "
    "those of Z complex, those of I, J and i integers, those of T and t bools; F has every "
    "element, and only the pattern of M counts. Operands in parentheses are given as one list. A "
    "sparse result has the layout of the first sparse operand, or COO where that layout can't "
    "hold it (CSR or CSC for a part of a BSR or BSC matrix), unless a layout stands behind a "
    "colon. There, `second` is the layout of the second sparse operand, `asked` that of the "
    "argument `layout`, and `flipped` is csc for csr, bsc for bsr, and vice versa. The gradient "
    "of a sparse operand is on its own pattern."
)


def _order(row: Op) -> str:
    return ("none", "1st", "1st, 2nd")[row.order] if row.order <= 2 else f"to {row.order}th"


def _reasons(rows: Iterable[Op]) -> list[str]:
    """Why layouts or the dense function are missing: a line for each operation or reason."""
    lines = []
    undescribed: dict[str, list[str]] = {}
    for row in rows:
        for reason in dict.fromkeys(row.absent[name] for name in ALL if name in row.absent):
            layouts = ", ".join(name for name in ALL if row.absent.get(name) == reason)
            lines.append(f"{row.name} not for {layouts}: {reason}.")
        if "dense" in row.absent:
            undescribed.setdefault(row.absent["dense"], []).append(row.name)
    for reason, names in undescribed.items():
        lines.append(f"No dense function specifies {', '.join(names)}: {reason}.")
    return lines


def _refusals(rows: Iterable[Op], quote: str) -> list[str]:
    """Why names of torch are refused in every layout."""
    return [f"{quote}{row.name}{quote} is refused: {row.absent[ALL[0]]}." for row in rows]
