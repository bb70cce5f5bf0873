"""Small files to load, and what `spgrad.io.load` says of those that it refuses."""

import pytest

import spgrad
import spgrad.io


def refused(path, **options):
    """What load says when it refuses a file; the file's name is in it."""
    with pytest.raises(spgrad.SpgradError) as caught:
        spgrad.io.load(path, **options)
    said = str(caught.value)
    assert said.startswith("spgrad.io.load: `path` is ")
    assert str(path) in said
    assert said.endswith(".")
    return said


def write(path, text):
    path.write_text(text)
    return path
