"""The public interface: names, docstrings, exceptions, and a fast import."""

import importlib
import inspect
import re
import subprocess
import sys
import types

import pytest
import torch

import spgrad
from spgrad import errors

MODULES = [
    importlib.import_module(f"spgrad{name}")
    for name in (
        "",
        ".data",
        ".distributed",
        ".distributions",
        ".graph",
        ".linalg",
        ".io",
        ".nn",
        ".nn.patterns",
        ".nn.sparsity",
        ".plot",
        ".testing",
    )
]
PUBLIC = [
    pytest.param(value, id=f"{module.__name__}.{name}")
    for module in MODULES
    for name in module.__all__
    for value in [getattr(module, name)]
    if not isinstance(value, types.ModuleType)
]
FUNCTIONS = [p for p in PUBLIC if inspect.isfunction(inspect.unwrap(p.values[0]))]
CLASSES = [p for p in PUBLIC if inspect.isclass(p.values[0])]
EXCEPTIONS = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and value.__module__ == errors.__name__
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_is_what_the_module_shows(module):
    """A public name is one without underscore that is no module, or a module in `__all__`."""
    assert len(set(module.__all__)) == len(module.__all__)
    listed = {name for name in module.__all__ if not name.startswith("_")}
    for name in module.__all__:
        assert hasattr(module, name), f"{name} is listed and does not exist"
    if module is not spgrad:
        return
    shown = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (not isinstance(value, types.ModuleType) or name in module.__all__)
    }
    assert shown == listed


def test_dir_shows_public_names_only():
    named = [name for name in dir(spgrad) if not name.startswith("__")]
    modules = {part for module in MODULES for part in module.__name__.split(".")[1:2]}
    assert set(named) == {*spgrad.__all__} | modules


def test_modules_that_are_imported_on_demand():
    """They work after `import spgrad` alone."""
    loaded_by("import spgrad\nassert callable(spgrad.io.load) and callable(spgrad.plot.spy)")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spgrad.nothing


def loaded_by(statement: str) -> set[str]:
    """The top-level modules of a new process after `statement`, less the standard library."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return {name.partition(".")[0] for name in run.stdout.split()} - sys.stdlib_module_names


def test_importing_spgrad_brings_torch_alone():
    extra = loaded_by("import spgrad") - loaded_by("import torch")
    assert extra - {"spgrad"} == set()


def missing_sections(function) -> list[str]:
    """The sections that a docstring lacks, unless it says "`spgrad.<other>` with ..." and other has
    them: what is said twice is soon said in two ways.
    """
    doc = inspect.getdoc(function) or ""
    lines = {line.strip() for line in doc.splitlines()}
    signature = inspect.signature(inspect.unwrap(function))
    if not signature.parameters:
        return []
    wanted = ["Args:", "Raises:", "Example:"]
    if signature.return_annotation not in (None, "None"):
        wanted.append("Returns:")
    missing = [section for section in wanted if section not in lines]
    general = re.search(r"`spgrad\.(\w+)`\s+with\b", doc)
    return missing_sections(getattr(spgrad, general[1])) if missing and general else missing


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_are_documented(function):
    assert inspect.getdoc(function)
    assert not missing_sections(function)


def defaults(function) -> dict[str, object]:
    """The defaults of the parameters that have one; none of a function that does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return {}
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@pytest.mark.parametrize("module", [torch, torch.nn.functional], ids=lambda module: module.__name__)
def test_defaults_are_those_of_torch(module):
    """An option that a function shares with torch's, if both have a default."""
    compared = 0
    for name in spgrad.__all__:
        theirs, ours = (defaults(getattr(m, name, None) or len) for m in (module, spgrad))
        shared = theirs.keys() & ours.keys()
        assert {p: ours[p] for p in shared} == {p: theirs[p] for p in shared}, name
        compared += len(shared)
    assert compared > 15


@pytest.mark.parametrize("cls", CLASSES)
def test_classes_are_documented(cls):
    """A class and its public methods have docstrings; an inherited method may inherit its own."""
    assert cls.__doc__
    bare = [
        name
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and inspect.isroutine(getattr(cls, name))
        and not inspect.getdoc(getattr(cls, name))
        and value is not None
    ]
    assert not bare


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: error.__name__)
def test_exceptions_form_one_tree(error):
    """One base; each is also a built-in exception, and stands in the tree drawn in the module."""
    assert issubclass(error, errors.SpgradError)
    assert error.__name__ in errors.__doc__
    assert error.__doc__
    if error is not errors.SpgradError:
        builtin = {base for base in error.__mro__ if base.__module__ == "builtins"}
        assert builtin - {Exception, BaseException, object}, "is no built-in exception as well"
        assert any(base.__name__ in errors.__doc__ for base in builtin)
