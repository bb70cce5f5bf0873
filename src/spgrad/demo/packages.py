"""Packages that only the demo needs."""

import importlib.util

from spgrad.errors import MissingPackageError


def require_packages(*names: str) -> None:
    """Refuses to go on without these packages, and says how to get them."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingPackageError(
            f"{' and '.join(missing)} {verb} not installed; install what the demo needs with: "
            "pip install 'spgrad[demo]'"
        )
