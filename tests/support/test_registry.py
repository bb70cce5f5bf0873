"""The support table is the registry: names, exports and answers to torch come from its rows."""

import importlib
import inspect
import types
from pathlib import Path

import pytest

import spgrad
from spgrad import interop, linalg, ops, support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.core.slots import TORCH_FUNCTIONS

ROWS = [row for row in support.OPS.values() if row.layouts]
PUBLIC = {row.name: row for row in ROWS if row.public}
CREATING = [row for row in ROWS if row.creates]
FAMILIES = sorted({row.family for row in support.OPS.values()})
rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)

# Constructors, and functions that are no operations on tensors.
NO_OPERATIONS = {
    *(f"sparse_{name}_tensor" for name in (*support.ALL, "compressed")),
    *("compiled", "dropin", "empty_cache", "from_scipy", "show_versions", "to_scipy"),
    *interop.__all__,
}


@rows
def test_the_module_defines_the_function(row):
    function = row.function
    assert inspect.isroutine(function)
    assert function.__doc__
    assert Path(importlib.import_module(row.path).__file__).stem == row.module.rpartition(".")[2]
    if row.public:
        assert function.__name__ == row.name
        assert function is getattr(spgrad, row.name)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_a_folder_and_a_file_of_rows(family):
    rows = importlib.import_module(f"spgrad.support.{family}").ROWS
    for row in rows:
        wanted = f"the row {row.name} of module {row.module} belongs in support/{row.family}.py"
        assert row.family == family, wanted
    in_table = [row.name for row in support.OPS.values() if row.family == family]
    assert [row.name for row in rows] == in_table
    importlib.import_module(f"spgrad.{'' if family in support.OUTSIDE else 'ops.'}{family}")


def test_public_functions_have_rows():
    functions = {n for n in spgrad.__all__ if not inspect.isclass(getattr(spgrad, n))}
    assert functions - NO_OPERATIONS == PUBLIC.keys()
    outside = {name for name, row in PUBLIC.items() if row.family in support.OUTSIDE}
    assert set(ops.__all__) == PUBLIC.keys() - outside
    algorithms = {n for n in linalg.__all__ if not inspect.isclass(getattr(linalg, n))}
    rows = [row for row in ROWS if row.family == "linalg" and row.module != "linalg.torch_names"]
    assert algorithms == {row.name for row in rows}
    for row in rows:
        assert getattr(linalg, row.name) is row.function


def test_functions_of_families_have_rows():
    """What is public by its decorator, in `ops` and the packages above, is in the table."""
    names = {row.name.rpartition(".")[2] for row in support.OPS.values()}
    public = spgrad.matmul.__code__  # that of the decorator
    assert public is spgrad.linalg.svds.__code__
    for row in ROWS:
        for name, value in vars(importlib.import_module(row.path)).items():
            made_here = getattr(value, "__module__", None) == row.path
            decorated = isinstance(value, types.FunctionType) and value.__code__ is public
            if row.family != "core" and decorated and made_here and not name.startswith("_"):
                assert name in names or name.removesuffix("_") in names, name


def test_answers_to_torch_come_from_the_rows():
    of_rows = {support.torch_named(name) for row in support.OPS.values() for name in row.torch}
    assert set(TORCH_FUNCTIONS) == of_rows | set(ops.ATTRIBUTES)
    assert not of_rows & set(ops.ATTRIBUTES)


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("row", CREATING, ids=lambda row: row.name)
def test_what_makes_a_tensor_takes_its_layouts(row, layout):
    blocks = {"blocksize": (2, 2)} if layout.startswith("b") else {}
    for sample in range(len(row.samples)):
        for signature in row.signatures:
            cell = testing.Cell(row, signature, "coo", sample)
            operands = [x.detach() for x in testing.sample(cell)]
            options = cell.options | {"layout": LAYOUTS[layout]}
            if layout not in row.layouts:
                with pytest.raises(
                    spgrad.SpgradError, match=rf"spgrad\.{row.name}: .*`(layout|blocksize)`"
                ):
                    row.call(row.function, *operands, **options)
                continue
            A = row.call(row.function, *operands, **options, **blocks)
            assert A.pattern.name == layout
            if row.dense is not None:
                testing.assert_close(A, row.call(row.dense, *operands, **cell.options))
