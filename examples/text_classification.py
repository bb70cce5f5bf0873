"""Which part of SciPy a paragraph is about, by TF-IDF in mini-batches of sparse rows.

The texts are the paragraphs of the docstrings of the installed SciPy, without examples and dotted
names; the subpackage is the class. All paragraphs of one docstring are in the training set, or all
are in the test set. A row has a number for each word and for each pair of neighbouring words, and
nearly all of these are zero.

The network has two layers. The first is `spgrad.nn.SparseEmbeddingBag`, which multiplies the sparse
rows by a table. Its gradient has only the rows of the table that the batch used, and
`torch.optim.SparseAdam` changes only these. For comparison, scikit-learn's logistic regression is
fitted to the same rows, and a step of the same network is measured with dense rows.

    python examples/text_classification.py --plot text.png
"""

import argparse
import ast
import copy
import re
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional as F

import spgrad

SMALL = ("fft", "integrate", "linalg", "ndimage")
WHOLE = (*SMALL, "interpolate", "io", "optimize", "signal", "sparse", "spatial", "special", "stats")
BATCH, WIDTH = 256, 64


def paragraphs(subpackage: str) -> list[list[str]]:
    """Those of each docstring of functions and classes: 80 characters or more, no examples."""
    scipy = find_spec("scipy")
    assert scipy is not None
    assert scipy.submodule_search_locations is not None
    found = []
    for path in sorted((Path(scipy.submodule_search_locations[0]) / subpackage).rglob("*.py")):
        if "tests" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                parts = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
                parts = [p for p in parts if len(p) >= 80 and ">>>" not in p]
                found.append([re.sub(r"\bscipy(\.\w+)+", " ", p) for p in parts])
    return found


class Texts:
    """The matrix of TF-IDF (texts, terms), the classes, and the rows to train on and to test."""

    def __init__(self, subpackages: tuple[str, ...]) -> None:
        self.subpackages = subpackages
        docstrings = [(d, c) for c, name in enumerate(subpackages) for d in paragraphs(name)]
        order = torch.randperm(len(docstrings), generator=torch.Generator().manual_seed(0))
        parts = (order * 10 // len(order)).tolist()  # tenths: 0 and 1 to test, 2 to validate
        texts: dict[str, tuple[int, int]] = {}  # a paragraph that comes again counts once
        for (docstring, label), part in zip(docstrings, parts):
            for text in docstring:
                texts.setdefault(text, (label, part))
        self.label, part = torch.tensor(list(texts.values())).T
        self.test, self.validation, self.train = (
            w.nonzero()[:, 0] for w in (part < 2, part == 2, part > 2)
        )
        terms = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2))
        words = list(texts)
        terms.fit([words[k] for k in self.train.tolist()])
        self.matrix = spgrad.from_scipy(terms.transform(words).astype("float32"))
        self.terms: list[str] = terms.get_feature_names_out().tolist()


class Network(nn.Module):
    """A table with a row for each term, and a layer on the sums of its rows."""

    def __init__(self, terms: int, classes: int) -> None:
        super().__init__()
        self.table = spgrad.nn.SparseEmbeddingBag(terms, WIDTH, mode="sum")
        nn.init.normal_(self.table.weight, std=0.1)
        self.last = nn.Linear(WIDTH, classes)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Scores of the classes, for each row."""
        return self.last(F.dropout(F.relu(self.table(rows)), 0.5, self.training))


def train(texts: Texts, epochs: int) -> tuple[Network, list[float]]:
    """The network at the epoch that is best on the validation rows, and the accuracies there."""
    torch.manual_seed(0)
    model = best = Network(texts.matrix.shape[1], len(texts.subpackages))
    optimizers = (
        torch.optim.SparseAdam(model.table.parameters(), lr=0.003),
        torch.optim.Adam(model.last.parameters(), lr=0.003),
    )
    curve: list[float] = []
    for _ in range(epochs):
        model.train()
        for rows in texts.train[torch.randperm(len(texts.train))].split(BATCH):
            loss = F.cross_entropy(model(texts.matrix[rows]), texts.label[rows])
            model.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        curve.append(accuracy(model, texts, texts.validation))
        if curve[-1] == max(curve):
            best = copy.deepcopy(model)
    return best, curve


def accuracy(model: nn.Module, texts: Texts, rows: torch.Tensor) -> float:
    """In percent, on some rows."""
    model.eval()
    with torch.no_grad():
        right = model(texts.matrix[rows]).argmax(1) == texts.label[rows]
    return 100 * right.double().mean().item()


def telling_terms(model: Network, texts: Texts) -> list[list[str]]:
    """For each class, the terms of its test texts that add most to its score.

    The gradient of the score has the pattern of the rows; times the rows, it says what each term
    of each text adds to the score, to first order.
    """
    model.eval()
    rows = texts.matrix[texts.test].detach().requires_grad_()
    label = texts.label[texts.test]
    (gradient,) = torch.autograd.grad(model(rows).gather(1, label[:, None]).sum(), rows)
    adds = rows.detach() * gradient
    sums = [adds[(label == c).nonzero()[:, 0]].sum(0) for c in range(len(texts.subpackages))]
    return [[texts.terms[k] for k in total.topk(4).indices.tolist()] for total in sums]


def step(texts: Texts, dense: bool) -> tuple[float, int]:
    """Seconds of a step, the least of ten, and bytes of its rows and of the table's gradient."""
    rows, label = texts.matrix[texts.train[:BATCH]], texts.label[texts.train[:BATCH]]
    terms, classes = texts.matrix.shape[1], len(texts.subpackages)
    last = nn.Linear(WIDTH, classes)
    if dense:
        x, first = rows.to_dense(), nn.Linear(terms, WIDTH, bias=False)
        optimizers = [torch.optim.Adam(first.parameters()), torch.optim.Adam(last.parameters())]
    else:
        x, first = rows, spgrad.nn.SparseEmbeddingBag(terms, WIDTH, mode="sum")
        changes = torch.optim.SparseAdam(first.parameters())
        optimizers = [changes, torch.optim.Adam(last.parameters())]
    model = nn.Sequential(first, nn.ReLU(), nn.Dropout(0.5), last)
    least = torch.inf
    for _ in range(10):
        start = time.perf_counter()
        model.zero_grad()
        F.cross_entropy(model(x), label).backward()
        for optimizer in optimizers:
            optimizer.step()
        least = min(least, time.perf_counter() - start)
    assert first.weight.grad is not None
    return least, size(x) + size(first.weight.grad)


def size(A: torch.Tensor) -> int:
    """Bytes of a dense tensor, or of the values and indices of a sparse one."""
    if A.layout == torch.strided:
        return A.nbytes
    if A.layout == torch.sparse_csr:
        return sum(part.nbytes for part in (A.values(), A.col_indices(), A.crow_indices()))
    return sum(part.nbytes for part in (A._values(), A._indices()))


def logistic(texts: Texts, strengths: tuple[float, ...]) -> float:
    """The accuracy of scikit-learn's regression, whose C is the best on the validation rows."""
    S, label = spgrad.to_scipy(texts.matrix).astype("float64"), texts.label.numpy()
    train, validation, test = (r.numpy() for r in (texts.train, texts.validation, texts.test))
    fitted = [LogisticRegression(C=C, max_iter=500).fit(S[train], label[train]) for C in strengths]
    best = max(fitted, key=lambda model: model.score(S[validation], label[validation]))
    return 100 * best.score(S[test], label[test])


def main(arguments: list[str] | None = None) -> None:
    """Trains, compares with scikit-learn, prints the telling terms and the cost of a step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="four classes, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    texts = Texts(SMALL if options.quick else WHOLE)
    count, terms = texts.matrix.shape
    each = texts.matrix.nse / count
    most = 100 * texts.label[texts.test].bincount().max().item() / len(texts.test)
    print(f"texts       {count} of {len(texts.subpackages)} subpackages, {len(texts.test)} to test")
    print(f"            {most:.1f} % of these are of the largest class")
    print(f"terms       {terms}, {each:.0f} in a text, {100 * each / terms:.2f} %")
    model, curve = train(texts, 12 if options.quick else 20)
    ours = accuracy(model, texts, texts.test)
    theirs = logistic(texts, (10.0,) if options.quick else (1.0, 10.0, 100.0))
    print(f"spgrad      {ours:.1f} % of the test texts right")
    print(f"logistic    {theirs:.1f} %, scikit-learn's regression")
    for name, found in zip(texts.subpackages, telling_terms(model, texts)):
        print(f"            {name:<12} {', '.join(found)}")
    costs = {"sparse rows": step(texts, False), "dense rows": step(texts, True)}
    for name, (seconds, held) in costs.items():
        print(f"{name:<11} {1e3 * seconds:.1f} ms a step, {held / 1e6:.1f} MB of rows and gradient")
    apart = 5 if options.quick else 2
    good = ours > theirs - apart and costs["sparse rows"][1] < costs["dense rows"][1] / 5
    verdict = "good" if good else "BAD"
    print(f"check       the regression is at most {apart} ahead, rows take a fifth: {verdict}")
    if options.plot:
        draw(options.plot, model, texts, curve, costs)


def draw(
    path: str,
    model: Network,
    texts: Texts,
    curve: list[float],
    costs: dict[str, tuple[float, int]],
) -> None:
    """The accuracy by epoch, the confusion of classes, and the step."""
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(12, 3.8), layout="constrained", width_ratios=(2, 2.2, 1.5)
    )
    left.plot(range(1, len(curve) + 1), curve, "o-")
    left.set(title="accuracy on the validation texts, %", xlabel="epochs", ylim=(0, 100))
    left.set_xticks(range(0, len(curve) + 1, 5))
    with torch.no_grad():
        taken_for = model(texts.matrix[texts.test]).argmax(1)
    classes = len(texts.subpackages)
    pairs = torch.stack([texts.label[texts.test], taken_for])
    counts = spgrad.from_edges(pairs, size=classes).to_dense()
    middle.imshow((counts / counts.sum(1, keepdim=True)).numpy(), cmap="Blues", vmin=0, vmax=1)
    middle.set_xticks(range(classes), texts.subpackages, rotation=90)
    middle.set_yticks(range(classes), texts.subpackages)
    middle.set(title="part of a class taken for another", xlabel="taken for", ylabel="is of")
    held = [bytes_held / 1e6 for _, bytes_held in costs.values()]
    bars = right.bar(list(costs), held, color=["C0", "C7"])
    labels = [f"{m:.1f} MB\n{1e3 * s:.0f} ms" for m, (s, _) in zip(held, costs.values())]
    right.bar_label(bars, labels)
    right.set(title="rows and gradient of a step", yticks=[], ylim=(0, 1.25 * max(held)))
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
