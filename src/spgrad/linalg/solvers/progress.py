"""Shows how an iteration advances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgrad.core import checks

Show = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]


class progress:  # noqa: N801  # a context manager that reads as a function
    """Shows the steps and the largest relative residual while the block runs, if asked to."""

    def __init__(self, wanted: bool, name: str, most: int) -> None:
        self.bar: Any = None
        if wanted:
            checks.require_packages("progress", "rich")
            from rich.progress import Progress, TextColumn

            text = TextColumn("{task.description} step {task.completed} residual {task.fields[r]}")
            self.bar = Progress(text)
            self.task = self.bar.add_task(name, total=most, r="")

    def __enter__(self) -> Show:
        if self.bar is None:
            return lambda *_: None
        self.bar.start()

        def show(
            steps: int, squares: torch.Tensor, norms: torch.Tensor, columns: torch.Tensor
        ) -> None:
            left = norms[:, columns]
            worst = float((squares.sqrt() / torch.where(left == 0, 1, left)).max())
            self.bar.update(self.task, completed=steps, r=f"{worst:.1e}")

        return show

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
