"""Small files to load, and what `spgrad.io.load` says of those that it refuses."""

import pytest

import spgrad
import spgrad.io


def refused(path, **options):
    """What load says when it refuses a file; the file's name is in it."""
    with pytest.raises(spgrad.ArgumentValueError) as caught:
        spgrad.io.load(path, **options)
    said = str(caught.value)
    assert said.startswith(f"spgrad.io.load: `path` is {path}")
    first, called = said.split("\n")
    assert first.endswith(".")
    assert called.startswith("  called with path: ")
    return said


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
