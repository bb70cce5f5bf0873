"""What patterns keep: one list has the keys, and copies and files leave it out."""

import ast
import copy
import copyreg
import io
import pickle
from pathlib import Path

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core import kept
from spgrad.core.pattern import LAYOUTS, Pattern

METHODS = {"derive", "derive_with", "derived", "keep"}
FILES = sorted(Path(spgrad.__file__).parent.rglob("*.py"))


def calls(source: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]


def keys(source: str) -> list[ast.expr]:
    """The first argument of every call that keeps something or asks for it."""
    return [
        call.args[0]
        for call in calls(source)
        if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS and call.args
    ]


def is_listed(key: ast.expr) -> bool:
    """True for a key of the list, one with parameters, and what a variable holds."""
    if isinstance(key, ast.Call):
        key = key.func.value if isinstance(key.func, ast.Attribute) else key
    if isinstance(key, ast.IfExp):
        return is_listed(key.body) and is_listed(key.orelse)
    if isinstance(key, ast.Attribute):
        return isinstance(getattr(kept, key.attr, None), kept.Key)
    return isinstance(key, ast.Name)


def test_keys_are_listed():
    found = [(path.name, key) for path in FILES for key in keys(path.read_text())]
    assert len(found) > 20
    assert [(name, ast.unparse(key)) for name, key in found if not is_listed(key)] == []


def kinds(source: str) -> list[ast.expr]:
    """The kind of result that every call of `remembered` keeps the last few of."""
    named = [call for call in calls(source) if isinstance(call.func, ast.Name)]
    return [call.args[1] for call in named if ast.unparse(call.func) == "remembered"]


def test_kinds_whose_last_results_are_kept_are_listed():
    found = [(path.name, kind) for path in FILES for kind in kinds(path.read_text())]
    assert len(found) > 9
    no_key = [(name, kind) for name, kind in found if not isinstance(kind, ast.Attribute)]
    assert [(name, ast.unparse(kind)) for name, kind in no_key] == []
    assert [(name, ast.unparse(kind)) for name, kind in found if not is_listed(kind)] == []


def test_a_key_of_its_own_is_found():
    (key,) = keys("pattern.derive('rows', make)")
    assert not is_listed(key)
    (key,) = keys("pattern.derive(kept.NOTHING, make)")
    assert not is_listed(key)
    (key,) = keys("pattern.derive(kept.LAYOUT.of(layout), make)")
    assert is_listed(key)


def test_every_key_is_used_and_has_its_own_name():
    listed = {name: key for name, key in vars(kept).items() if isinstance(key, kept.Key)}
    assert len({key.name for key in listed.values()}) == len(listed)
    text = "".join(path.read_text() for path in FILES if path.name != "kept.py")
    assert [name for name in listed if f"kept.{name}" not in text] == []


def saved_and_loaded(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", support.ALL)
def test_patterns_are_saved_without_what_they_keep(name):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    _ = A @ A.mT, A.to_sparse_csc(), A + A  # keeps results, also for pairs of patterns
    assert copy.deepcopy(A.pattern) is A.pattern
    held = copy.deepcopy({"A": A, "pattern": A.pattern})
    assert held["A"].pattern is held["pattern"]
    for way in (lambda p: pickle.loads(pickle.dumps(p)), copy.copy, saved_and_loaded):
        made = way(A.pattern)
        assert made is not A.pattern
        assert made.same_as(A.pattern)
        assert made.spec == A.pattern.spec
        torch.testing.assert_close(spgrad.from_values(A.values(), made), A)


def test_damaged_patterns_are_refused():
    loads, (spec, shape, indices) = copyreg.dispatch_table[Pattern](spgrad.eye(3).pattern)
    with pytest.raises(ValueError, match="1000 at position 1"):
        loads(spec, shape, (indices[0], torch.tensor([0, 1000, 2])))
    with pytest.raises(ValueError, match="`state` is of 2 parts; one of 3 is accepted"):
        loads(spec, shape)
