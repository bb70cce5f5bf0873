"""What is refused, and the texts of the errors."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.dlpack
from samples import drawn, made_by_torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.torch_protocol.requirement import OLDEST, require_torch

ROOT = Path(__file__).parents[2]

# Exports of memory

EXPORTS = {
    "to_dlpack": torch.utils.dlpack.to_dlpack,
    "torch.to_dlpack": torch.to_dlpack,
    "__dlpack__": lambda A: A.__dlpack__(),
    "__dlpack_device__": lambda A: A.__dlpack_device__(),
    "from_dlpack": torch.from_dlpack,
    "numpy": np.from_dlpack,
    "data_ptr": lambda A: A.data_ptr(),
}


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("export", EXPORTS)
def test_memory_is_not_exported(export, name):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    with pytest.raises(spgrad.UnsupportedError, match=r"Pass its parts, A\.values\(\)"):
        EXPORTS[export](A)


@pytest.mark.parametrize("export", [torch._C._to_dlpack, torch._C._to_dlpack_versioned])
def test_no_null_pointer_reaches_other_libraries(export):
    """These ask no Python code; what they were given was a capsule that crashes its reader."""
    A = spgrad.eye(3)
    for tensor in (A, A.detach(), A * 2, A.clone(), torch.nn.Parameter(spgrad.eye(3)).detach()):
        with pytest.raises(RuntimeError, match="data pointer"):
            export(tensor)


def test_dense_tensors_are_exported_as_before():
    x = torch.arange(3.0)
    for to_dlpack in (torch.to_dlpack, torch.utils.dlpack.to_dlpack):
        assert torch.equal(torch.from_dlpack(to_dlpack(x)), x)


# Operations that have no sparse form


@pytest.mark.parametrize(
    ("call", "name", "way_out"),
    [
        (lambda A: torch.cumsum(A, 0), "torch.cumsum", "Use spgrad.cumsum(A)"),
        (lambda A: A.cumsum(0), "torch.Tensor.cumsum", "Use spgrad.cumsum(A)"),
        (F.gelu, "torch.nn.functional.gelu", "spgrad.map(A, torch.nn.functional.gelu)"),
        (torch.special.expit, "torch.special.expit", "spgrad.map(A, torch.special.expit)"),
        (lambda A: A.normal_(), "torch.Tensor.normal_", "rand_like(A.values())"),
        (lambda A: A.as_strided((1,), (1,)), "torch.Tensor.as_strided", "take A.values()"),
        (lambda A: torch.cummax(A, 0), "torch.cummax", "Work on A.values()"),
        (torch.linalg.qr, "torch.linalg.qr", "A.to_dense() if the dense tensor fits"),
        (torch.linalg.eigh, "torch.linalg.eigh", "Use spgrad.linalg.eigsh(A, k)"),
        (torch.linalg.svd, "torch.linalg.svd", "Use spgrad.linalg.svds(A, k)"),
        (torch.linalg.cholesky, "torch.linalg.cholesky", "Use spgrad.linalg.factor(A)"),
        (torch.matrix_exp, "torch.matrix_exp", "Use spgrad.expm_multiply(A, x)"),
        (lambda A: A.fill_(2), "torch.Tensor.fill_", "Use spgrad.full_like(A, value)"),
        (lambda A: A.fill_diagonal_(2), "torch.Tensor.fill_diagonal_", "Use spgrad.set_diag(A,"),
        (lambda A: A.masked_fill(A > 0, 2), "torch.Tensor.masked_fill", "torch.where(mask, value"),
    ],
)
def test_the_function_is_named_and_a_way_out(call, name, way_out):
    with pytest.raises(spgrad.UnsupportedError) as caught:
        call(spgrad.eye(3))
    said = str(caught.value)
    assert said.startswith(f"spgrad: `{name}` (which calls `aten.")
    assert way_out in said
    assert "torch.func" not in said


def test_torch_func_is_told_of_in_torch_func_alone():
    with pytest.raises(
        spgrad.UnsupportedError, match=r"In torch\.func, .*from_values\(values, A\)"
    ):
        torch.vmap(torch.exp)(spgrad.eye(3))


# Versions of torch


@pytest.mark.parametrize("version", ["1.13.1", "2.4.0+cu121", "2.9.1", "2.10.0a0+git1", "0.4"])
def test_an_old_torch_is_refused(version):
    with pytest.raises(ImportError) as caught:
        require_torch(version)
    oldest = ".".join(map(str, OLDEST))
    assert f"torch {version} is installed; torch {oldest} or newer is needed" in str(caught.value)


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0a0", "2.13.1+cpu", "3.0", "git-1234"])
def test_a_newer_torch_is_not(version):
    require_torch(version)


def test_the_oldest_torch_is_that_of_the_package():
    declared = (ROOT / "pyproject.toml").read_text()
    assert f'dependencies = ["torch>={OLDEST[0]}.{OLDEST[1]}"]' in declared


def test_the_import_under_an_old_torch_says_so_in_one_sentence(tmp_path):
    (tmp_path / "torch.py").write_text("__version__ = '2.5.1'\n")
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT / 'src')!r}]; import spgrad"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        "spgrad.errors.MissingPackageError: spgrad: torch 2.5.1 is installed; torch 2.11 or newer "
        "is needed. Upgrade it with: pip install 'torch>=2.11'"
    )


UNCLEAR = ("do not have strides", "SPARSE_STATUS", "INTERNAL ASSERT", "Could not run")


@pytest.mark.parametrize("name", support.ALL)
def test_messages_say_what_to_do(sparse, name):
    A, x = sparse(drawn(4, 6), name), torch.randn(6, 3, dtype=torch.float64)
    calls = (
        lambda: A + 1,
        lambda: torch.exp(A),
        lambda: A @ x[:5],
        lambda: A @ x.float(),
        lambda: A.cumsum(0),
        A.sort,
        lambda: torch.linalg.inv(A),
        lambda: A.as_strided((2,), (1,)),
        A.numpy,
        lambda: F.conv1d(A, A),
        lambda: A.view(-1, 5),
        lambda: A.clone().normal_(),
        lambda: A.crow_indices() if name in ("coo", "csc", "bsc") else A.ccol_indices(),
    )
    for call in calls:
        try:
            call()
        except (RuntimeError, TypeError, ValueError) as raised:
            error = raised
        else:
            assert sparse is made_by_torch  # where torch has an answer, it gives it
            continue
        if sparse is made_by_torch and not isinstance(error, spgrad.SpgradError):
            error = error.__cause__  # torch's own error comes from that of spgrad
        assert isinstance(error, spgrad.SpgradError)
        assert str(error).startswith("spgrad")
        assert not any(words in str(error) for words in UNCLEAR)
