"""Each row of the pages on migration runs; it gives what the other library gives, if installed."""

import importlib
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import spgrad

PAGES = Path(__file__).parents[2] / "docs" / "migration"
PEERS = {
    "pyg": "torch_geometric",
    "torch_sparse_module": "torch",
    "scipy": "scipy",
    "torch_sparse": "torch_sparse",
    "dgl": "dgl",
    "torchsparsegradutils": "torchsparsegradutils",
}


def rows_of(page):
    """(old line, new line, whether the results are the same) of each row."""
    rows, same = [], True
    for line in (PAGES / f"{page}.md").read_text().splitlines():
        if line.startswith("## "):
            same = line != "## Another result"
        code = re.match(r"\| `(.*?)` \| `(.*?)` \|", line)
        if code:
            rows.append((*code.groups(), same))
    return rows


def operands(page, old):
    """What the rows of a page are about: of spgrad alone, or of the other library too."""
    text = (PAGES / f"{page}.md").read_text()
    common, others = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    scope = {}
    exec(common, scope)
    if old:
        exec(others, scope)
    return scope


def plain(value):
    """Sparse results of any library as dense tensors."""
    if isinstance(value, (tuple, list)) and not all(type(item) is int for item in value):
        return [plain(item) for item in value]
    if isinstance(value, torch.Tensor):
        return value.detach().to_dense()
    for way in ("toarray", "to_dense"):
        if hasattr(value, way):
            value = getattr(value, way)()
    return value if isinstance(value, torch.dtype) else torch.as_tensor(np.asarray(value))


def installed(name):
    try:
        importlib.import_module(name)
    except (ImportError, OSError):
        return False
    return True


CASES = [(page, *row) for page in PEERS for row in rows_of(page)]


@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated")  # torch_geometric uses it
@pytest.mark.parametrize(("page", "old", "new", "same"), CASES)
def test_row(page, old, new, same):
    with_old = installed(PEERS[page])
    scope = operands(page, with_old)
    needs = {"spgrad.from_torch(te)", "spgrad.from_scipy(S)", "spgrad.from_torch(a)"}
    if new in needs and not with_old:
        pytest.skip(f"{PEERS[page]} is not installed")
    found = eval(new, scope)
    if not with_old:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = eval(old, scope)
    if same:
        torch.testing.assert_close(plain(found), plain(wanted), check_dtype=False)


@pytest.mark.parametrize("page", PEERS)
def test_number_of_rows(page):
    """Every line of the tables is a row that runs, except for the heads and the rules."""
    assert len(rows_of(page)) >= 25
    lines = [line for line in (PAGES / f"{page}.md").read_text().splitlines() if line[:1] == "|"]
    rules = sum(set(line) <= set("|-: ") for line in lines)
    assert len(rows_of(page)) == len(lines) - 2 * rules


def test_the_batched_product_is_that_of_the_documents_of_dgl():
    """The example of dgl.sparse.bsddmm, whose last dimension is the batch, with the page's line."""
    (line,) = (new for old, new, _ in rows_of("dgl") if "bsddmm" in old)
    weights = torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 2)
    H = spgrad.sparse_coo_tensor([[1, 1, 2], [2, 3, 3]], weights, (3, 4, 2)).coalesce()
    x, y = torch.arange(30.0).view(3, 5, 2), torch.arange(40.0).view(5, 4, 2)
    line = line.replace("q.mT, q.mT", "x.mT, y.transpose(0, 1).mT")
    found = eval(line, {"spgrad": spgrad, "H": H, "x": x, "y": y})
    assert found.values().tolist() == [[1560, 1735], [3400, 3770], [8400, 9105]]


def test_every_page_is_tested():
    assert {path.stem for path in PAGES.glob("*.md")} - {"index"} == set(PEERS)
