"""Random programs, compiled once and run on several graphs, equal the eager ones.

A program is a chain of operations on one sparse matrix, and a last one that may leave the sparse
tensors. Its operands are `A (m, k)`, `right (k, 3)` and `left (m, 3)`.
"""

import random

import pytest
import torch
from compiling import compare
from torch.nn import functional as F

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours

SHAPES = ((4, 6), (8, 10), (12, 8))


ON_ITS_PATTERN = {
    "neg": lambda A, left, right: -A,
    "sin": lambda A, left, right: torch.sin(A),
    "abs": lambda A, left, right: A.abs(),
    "relu": lambda A, left, right: A.relu(),
    "leaky_relu": lambda A, left, right: F.leaky_relu(A, 0.2),
    "clamp": lambda A, left, right: A.clamp(-0.5, 0.5),
    "square": lambda A, left, right: A**2,
    "scaled": lambda A, left, right: 2 * A / 3,
    "in_place": lambda A, left, right: (A * 1).tanh_().mul_(2),
    "map": lambda A, left, right: spgrad.map(A, torch.exp),
    "with_itself": lambda A, left, right: A * A - A,
    "with_one_on_its_pattern": lambda A, left, right: torch.maximum(A, A.sin() * 2),
    "rows_scaled": lambda A, left, right: A * left[:, :1],
    "columns_scaled": lambda A, left, right: A / (right[:, 0].abs() + 1),
    "dense_factor": lambda A, left, right: A * (left @ right.t()),
    "by_sums": lambda A, left, right: A * A.sum(0),
    "by_maxima": lambda A, left, right: A * A.amax(1)[:, None],
    "degrees": lambda A, left, right: A * A.abs().sum(1).clamp(min=1).rsqrt()[:, None],
    "softmax": lambda A, left, right: torch.softmax(A, 1),
    "log_softmax": lambda A, left, right: torch.log_softmax(A, 0),
    "normalize": lambda A, left, right: F.normalize(A, dim=1),
    "values": lambda A, left, right: spgrad.from_values(A.values().relu() + 1, A),
    "sampled": lambda A, left, right: spgrad.sampled_addmm(A, left, right.t(), beta=0.5),
    "mask": lambda A, left, right: (left @ right.t()).sparse_mask(A),
    "clone": lambda A, left, right: A.clone(),
    "coo": lambda A, left, right: A.to_sparse_coo(),
}
TURNED = {
    "t": lambda A, left, right: A.t(),
    "mT": lambda A, left, right: A.mT,
    "adjoint": lambda A, left, right: (A * 2).adjoint(),
}
LAST = {
    "sparse": lambda A, left, right: A,
    "product": lambda A, left, right: A @ right,
    "from_left": lambda A, left, right: left.t() @ A,
    "vector": lambda A, left, right: A @ right[:, 0],
    "linear": lambda A, left, right: F.linear(right.t(), A, left[:, 0]),
    "addmm": lambda A, left, right: torch.addmm(left, A, right, beta=0.5),
    "there_and_back": lambda A, left, right: A.t() @ (A @ right),
    "messages": lambda A, left, right: spgrad.spmm(A, right, "mean"),
    "attention": lambda A, left, right: spgrad.scaled_dot_product_attention(left, right, right, A),
    "sum": lambda A, left, right: A.sum(),
    "mean": lambda A, left, right: A.mean(1),
    "maxima": lambda A, left, right: A.amax(0),
    "specified_maxima": lambda A, left, right: spgrad.amax(A, 1, specified=True),
    "logsumexp": lambda A, left, right: torch.logsumexp(A, 1),
    "norm": lambda A, left, right: torch.linalg.vector_norm(A, dim=1),
    "var": lambda A, left, right: A.var(0),
    "to_dense": lambda A, left, right: A.to_dense(),
    "values": lambda A, left, right: A.values(),
    "dense_sum": lambda A, left, right: A + right[:, 0],
}
NEW_PATTERN = {
    "sparse_product": lambda A, left, right: A @ A.t() @ A,
    "tril": lambda A, left, right: A.tril(),
    "prune": lambda A, left, right: spgrad.prune(A, 0.5),
    "union": lambda A, left, right: A + A.to_sparse_csr().flip(1),
    "intersection": lambda A, left, right: A * A.to_sparse_csr().flip(0),
    "rows": lambda A, left, right: torch.cat([A.to_sparse_csr()[2:], A.to_sparse_csr()[:2]]),
    "coalesce": lambda A, left, right: A.to_sparse_coo().coalesce(),
    "blocks": lambda A, left, right: A.to_sparse_bsr((2, 2)),
    "csr": lambda A, left, right: A.to_sparse_csr(),
}


class Program:
    """The operations that a number stands for."""

    def __init__(self, number, *, breaks=False):
        rng = random.Random(number)
        names = [*ON_ITS_PATTERN, *TURNED]
        if breaks:  # what a graph gives and no gradient reaches: torch takes dense zeros, or fails
            names.remove("mask")
        self.layout = rng.choice(support.ALL)
        self.steps = [rng.choice(names) for _ in range(rng.randint(0, 3))]
        if breaks:
            self.steps.insert(rng.randint(0, len(self.steps)), rng.choice(list(NEW_PATTERN)))
        self.last = rng.choice(list(LAST))

    def __repr__(self):
        return " ".join([self.layout, *self.steps, "->", self.last])

    def __call__(self, A, left, right):
        for name in self.steps:
            if name in TURNED:
                A, left, right = TURNED[name](A, left, right), right, left
            else:
                A = {**ON_ITS_PATTERN, **NEW_PATTERN}[name](A, left, right)
        return LAST[self.last](A, left, right)


def operands(layout, shape, seed, density=0.4):
    torch.manual_seed(seed)
    A = testing.random_sparse(shape, LAYOUTS[layout], density=density, seed=seed)
    return A, *(torch.randn(size, 3, dtype=torch.float64) for size in shape)


def check(program, **options):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", **options)
    given = [operands(program.layout, shape, seed) for seed, shape in enumerate(SHAPES)]
    given.append(operands(program.layout, SHAPES[1], 0, density=0.0))
    for case in given:
        compare(compiled, program, *case)


@pytest.mark.parametrize("number", range(16))
def test_programs_in_one_graph(number):
    check(Program(number), fullgraph=True)


@pytest.mark.parametrize("number", range(7))
def test_programs_that_make_a_pattern(number):
    check(Program(number, breaks=True))
