"""What holds for the text of every Triton kernel, and of what launches it."""

import ast
from pathlib import Path

import pytest

from spgrad.kernels import REFERENCES
from spgrad.kernels import triton as package
from spgrad.kernels.triton import MODULES

SOURCES = Path(package.__file__).parent
MOST_PARAMETERS = 16
WAITING = {"Stream", "synchronize", "cudaMalloc", "item", "tolist", "cpu", "numpy", "nonzero"}
"""Names that no launcher has: of streams of its own, and of what makes the host wait."""


def decorated(tree, name):
    """Functions with the decorator of this name, which may have arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            called = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
            if name in map(ast.unparse, called):
                yield node


def names(tree):
    """Every name and attribute, and the names of arguments that are given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def parameters(function):
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


TREES = {
    path.relative_to(SOURCES).as_posix(): ast.parse(path.read_text())
    for path in sorted(SOURCES.rglob("*.py"))
}
FUNCTIONS = [f for tree in TREES.values() for f in decorated(tree, "triton.jit")]
LAUNCHERS = [f for tree in TREES.values() for f in decorated(tree, "launched")]


def test_functions_are_found():
    assert len([f for f in FUNCTIONS if f.name.endswith("_kernel")]) == 20
    assert {f.name for f in LAUNCHERS} == MODULES.keys()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name)
def test_a_kernel_has_few_parameters(function):
    assert len(parameters(function)) <= MOST_PARAMETERS


@pytest.mark.parametrize("file", TREES)
def test_nothing_adds_to_memory_that_another_program_adds_to(file):
    assert not [name for name in names(TREES[file]) if name.startswith("atomic_")]


@pytest.mark.parametrize("file", TREES)
def test_launchers_have_no_stream_of_their_own_and_do_not_wait(file):
    assert not WAITING.intersection(names(TREES[file]))


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda f: f.name)
def test_a_launcher_has_a_reference_with_the_same_parameters(launcher):
    reference = REFERENCES[launcher.name]
    wanted = reference.__code__.co_varnames[: reference.__code__.co_argcount]
    assert tuple(p.arg for p in parameters(launcher)) == wanted
