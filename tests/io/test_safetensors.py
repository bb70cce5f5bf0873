"""safetensors files: there and back, and parts that do not fit."""

import json

import pytest
import torch

import spgrad
import spgrad.io
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

safetensors = pytest.importorskip("safetensors.torch")


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("shape", [(4, 6), (2, 4, 6)])
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float64, torch.complex64, torch.complex128, torch.bool]
)
def test_round_trip(name, shape, dtype, tmp_path):
    A = testing.random_sparse(shape, LAYOUTS[name], dtype=dtype, coalesced=name != "coo")
    spgrad.io.save(A, tmp_path / "a.safetensors")
    B = spgrad.io.load(tmp_path / "a.safetensors")
    assert B.pattern.spec == A.pattern.spec
    assert torch.equal(B._vals, A._vals)
    assert B.pattern.same_as(A.pattern)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_round_trip_of_half_complex_numbers(tmp_path):
    A = spgrad.from_values(torch.tensor([1 + 2j, 3 - 4j]).to(torch.complex32), spgrad.eye(2))
    spgrad.io.save(A, tmp_path / "a.safetensors")
    B = spgrad.io.load(tmp_path / "a.safetensors")
    assert B.dtype == torch.complex32
    assert B.values().tolist() == A.values().tolist()


def test_dense_dimensions(tmp_path):
    A = testing.random_sparse((4, 6, 3), dense_dim=1)
    spgrad.io.save(A, tmp_path / "a.safetensors")
    assert torch.equal(spgrad.io.load(tmp_path / "a.safetensors").to_dense(), A.to_dense())


@pytest.mark.parametrize(
    ("parts", "about", "text"),
    [
        ({}, {"format": "pt"}, "format is spgrad"),
        ({}, {"spec": "[]"}, "can't be read"),
        ({}, {"shape": "[2]"}, "`shape` is"),
        ({}, {"shape": '["x", 2]'}, "`shape` is"),
        ({"plain_indices": torch.tensor([0, 9])}, {}, "9"),
        ({"plain_indices": torch.tensor([0.0, 1.0])}, {}, "float32"),
        ({"compressed_indices": torch.tensor([0, 5, 2])}, {}, "indices"),
        ({"values": torch.ones(3)}, {}, "`values` is"),
        ({"values": None}, {}, "no tensor `values`"),
        ({}, {"values": "complex128"}, "not pairs of float64"),
        ({"values": torch.ones(2, 3).double()}, {"values": "complex128"}, "not pairs of float64"),
    ],
)
def test_what_is_wrong_is_said(parts, about, text, tmp_path):
    path = tmp_path / "a.safetensors"
    spgrad.io.save(spgrad.eye(2), path)
    with safetensors.safe_open(path, "pt") as file:
        old = file.metadata()
        whole = {name: file.get_tensor(name) for name in file.keys()} | parts  # noqa: SIM118
    whole = {name: t for name, t in whole.items() if t is not None}
    safetensors.save_file(whole, path, metadata=old | about)
    with pytest.raises(spgrad.ArgumentValueError) as raised:
        spgrad.io.load(path)
    assert text in str(raised.value)


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(json.dumps({}).encode() * 9)
    with pytest.raises(spgrad.ArgumentValueError, match="can't be read"):
        spgrad.io.load(path)


def test_the_bytes_of_a_file_are_bounded(tmp_path):
    path = tmp_path / "a.safetensors"
    spgrad.io.save(spgrad.eye(2), path)
    size = path.stat().st_size
    assert spgrad.io.load(path, max_bytes=size).nse == 2
    with pytest.raises(spgrad.ArgumentValueError, match=f"would take {size} bytes, more than"):
        spgrad.io.load(path, max_bytes=size - 1)
