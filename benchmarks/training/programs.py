"""The contenders of each program: functions that make a model and return its training epoch.

Each contender has the same model, layer by layer. Where a library has no layer for it, the
contender is left out, or says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import spgrad
from benchmarks.training.sampling import Sampler
from examples import (
    block_attention,
    graph_attention,
    learned_edges,
    neighbor_sampling,
    recommender,
    sparse_mlp,
    text_classification,
)
from spgrad.demo import data

Epoch = Callable[[], None]
OWN = "spgrad"


class Unavailable(Exception):  # noqa: N818  # nothing went wrong
    """Why a contender has no epoch."""


def _descent(
    loss: Callable[[], torch.Tensor], parameters: Iterable[nn.Parameter], **options: Any
) -> Epoch:
    """A step of Adam on a loss."""
    optimizer = torch.optim.Adam(parameters, **options)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def geometric() -> Any:
    try:
        from torch_geometric import nn as layers
    except ImportError as error:
        raise Unavailable("torch_geometric is not installed") from error
    return layers


# Graph attention with eight heads on Cora.


@cache
def _cora() -> learned_edges.Case:
    return learned_edges.cases()["half known"]


def _attention(own: bool) -> Epoch:
    A, x = _normalized(), _cora().x
    if own:
        layer, inputs = spgrad.nn.GraphAttention, (x, A)
    else:
        layer, inputs = geometric().GATConv, (x.to_dense(), edges_of(A))
    model = graph_attention.Network(layer, x.shape[1], learned_edges.CLASSES)
    return _classifier(model, inputs, model.parameters(), lr=0.005, weight_decay=5e-4)


def _classifier(
    model: nn.Module, inputs: tuple[Any, ...], parameters: Iterable[nn.Parameter], **options: Any
) -> Epoch:
    known, label = _cora().split()[0], _cora().labels
    return _descent(
        lambda: F.cross_entropy(model(*inputs)[known], label[known]), parameters, **options
    )


# A graph network with fixed and with learned weights of links on Cora.


@cache
def _normalized() -> spgrad.SparseTensor:
    """D^-1/2 (A + I) D^-1/2 of the citations."""
    return data.load().adjacency


def edges_of(A: spgrad.SparseTensor) -> torch.Tensor:
    """(2, nse) as torch_geometric has them: sources, then targets."""
    return A.coo_indices().flip(0).contiguous()


class _TwoLayers(nn.Module):
    """A relu(A x W) V, where `product` multiplies with A."""

    def __init__(self, product: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.product = product
        self.first = nn.Linear(_cora().x.shape[1], 32, bias=False)
        self.second = nn.Linear(32, learned_edges.CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the topics."""
        h = F.relu(self.product(self.first(F.dropout(x, 0.5))))
        return self.product(self.second(F.dropout(h, 0.5)))


def _dropped(h: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.relu(h), 0.5)


def _dropped_by_factors(h: torch.Tensor) -> torch.Tensor:
    """The same numbers, by a function that torch.compile calls as it is."""
    return F.relu(h * torch.empty_like(h).bernoulli_(0.5).div_(0.5))


def _fixed_edges(
    compiled: bool = False, hidden: Callable[[torch.Tensor], torch.Tensor] = _dropped
) -> Epoch:
    A = _normalized()
    first = spgrad.nn.GraphConv(_cora().x.shape[1], 32, normalize=False)
    second = spgrad.nn.GraphConv(32, learned_edges.CLASSES, normalize=False)

    def model(x: torch.Tensor) -> torch.Tensor:
        return second(hidden(first(spgrad.dropout(x, 0.5), A)), A)

    model = torch.compile(model, fullgraph=True) if compiled else model
    return _graph_epoch(model, [*first.parameters(), *second.parameters()], _cora().x)


def _fixed_edges_torch() -> Epoch:
    A = spgrad.to_torch(_normalized())
    model = _TwoLayers(lambda x: A @ x)
    return _graph_epoch(model, model.parameters(), _cora().x.to_dense())


def _fixed_edges_geometric() -> Epoch:
    layers = geometric()
    first = layers.GCNConv(_cora().x.shape[1], 32, normalize=False)
    second = layers.GCNConv(32, learned_edges.CLASSES, normalize=False)
    edges, weight = edges_of(_normalized()), _normalized().values()

    def model(x: torch.Tensor) -> torch.Tensor:
        h = F.relu(first(F.dropout(x, 0.5), edges, weight))
        return second(F.dropout(h, 0.5), edges, weight)

    return _graph_epoch(model, [*first.parameters(), *second.parameters()], _cora().x.to_dense())


def _graph_epoch(
    model: Callable[..., torch.Tensor], parameters: Iterable[nn.Parameter], x: torch.Tensor
) -> Epoch:
    known, label = _cora().split()[0], _cora().labels
    return _descent(lambda: F.cross_entropy(model(x)[known], label[known]), parameters, lr=0.03)


def _learned_edges() -> Epoch:
    model = learned_edges.Network(_cora(), learned=True)
    return _graph_epoch(model, model.parameters(), _cora().x)


class _Links:
    """Both directions of the links and the loops, and the weights of all from those of links."""

    def __init__(self) -> None:
        i, j = _cora().links.coo_indices()
        self.count, self.size = len(i), len(_cora().labels)
        loops = torch.arange(self.size)
        self.target = torch.cat([i, j, loops])
        self.source = torch.cat([j, i, loops])

    def weights(self, theta: torch.Tensor) -> torch.Tensor:
        """D^-1/2 (exp(theta) and its transpose + I) D^-1/2, by entry."""
        weight = torch.cat([theta.exp(), theta.exp(), theta.new_ones(self.size)])
        degree = weight.new_zeros(self.size).index_add(0, self.target, weight)
        scale = degree.rsqrt()
        return weight * scale[self.target] * scale[self.source]


def _learned_edges_torch() -> Epoch:
    links = _Links()
    theta = nn.Parameter(torch.zeros(links.count))
    indices, size = torch.stack([links.target, links.source]), (links.size, links.size)

    def product(x: torch.Tensor) -> torch.Tensor:
        A = torch.sparse_coo_tensor(indices, links.weights(theta), size, check_invariants=False)
        return torch.sparse.mm(A, x)

    model = _TwoLayers(product)
    return _graph_epoch(model, [*model.parameters(), theta], _cora().x.to_dense())


def _learned_edges_geometric() -> Epoch:
    layers, links = geometric(), _Links()
    theta = nn.Parameter(torch.zeros(links.count))
    first = layers.GCNConv(_cora().x.shape[1], 32, normalize=False)
    second = layers.GCNConv(32, learned_edges.CLASSES, normalize=False)
    edges = torch.stack([links.source, links.target])

    def model(x: torch.Tensor) -> torch.Tensor:
        weight = links.weights(theta)
        h = F.relu(first(F.dropout(x, 0.5), edges, weight))
        return second(F.dropout(h, 0.5), edges, weight)

    parameters = [*first.parameters(), *second.parameters(), theta]
    return _graph_epoch(model, parameters, _cora().x.to_dense())


# GraphSAGE on samples of the neighbours of mini-batches.


@cache
def _nodes() -> neighbor_sampling.Data:
    return neighbor_sampling.Data(20_000)


def _sampled() -> Epoch:
    nodes = _nodes()
    loader = spgrad.data.NeighborLoader(
        nodes.graph, [10, 10], x=nodes.x, batch_size=512, shuffle=True
    )
    model = neighbor_sampling.Sage()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def epoch() -> None:
        for batch in loader:
            label = nodes.group[batch.n_id[: batch.batch_size]]
            loss = F.cross_entropy(model(batch.x, *batch.blocks), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def _sampled_geometric() -> Epoch:
    layers, nodes = geometric(), _nodes()
    sampler = Sampler(nodes.graph, [10, 10])
    first = layers.SAGEConv(neighbor_sampling.FEATURES, 64)
    second = layers.SAGEConv(64, neighbor_sampling.GROUPS)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)

    def epoch() -> None:
        for seeds in torch.randperm(len(nodes.x)).split(512):
            drawn, (outer, inner) = sampler.blocks(seeds)
            x = nodes.x[drawn]
            h = F.relu(first((x, x[: outer.targets]), outer.edges))
            scores = second((h, h[: inner.targets]), inner.edges)
            loss = F.cross_entropy(scores, nodes.group[seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def _sampled_by_geometric() -> Epoch:
    geometric()
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    graph = Data(edge_index=edges_of(_nodes().graph), num_nodes=len(_nodes().x))
    try:
        next(iter(NeighborLoader(graph, num_neighbors=[10, 10], batch_size=512)))
    except ImportError as error:
        raise Unavailable(str(error)) from error
    raise Unavailable("samples, but has no row here yet")


# LightGCN.


@cache
def _log() -> recommender.Log:
    return recommender.Log()


class _Propagation:
    """The product with a graph, of torch_geometric."""

    def __init__(self, A: spgrad.SparseTensor) -> None:
        self.layer = geometric().LGConv(normalize=False)
        self.edges, self.weight = edges_of(A), A.values()

    def __matmul__(self, H: torch.Tensor) -> torch.Tensor:
        return self.layer(H, self.edges, self.weight)


def _recommended(made: Callable[[spgrad.SparseTensor], Any]) -> Epoch:
    log = _log()
    A = made(log.graph())
    E = nn.Parameter(0.1 * torch.randn(recommender.USERS + recommender.ITEMS, 32))
    return _descent(lambda: recommender.ranking_loss(E, A, log, 3), [E], lr=0.02)


# A network with 5 % of the weights, on the digits.


class _Row(nn.Module):
    """A linear layer whose weight is a sparse CSR parameter of torch."""

    def __init__(self, model: spgrad.nn.SparseLinear) -> None:
        super().__init__()
        self.weight = nn.Parameter(spgrad.to_torch(model.weight.detach()))
        self.bias = nn.Parameter(model.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + b."""
        return torch.sparse.mm(self.weight, x.T).T + self.bias


@cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    return sparse_mlp.digits()


def _network(kind: str) -> Epoch:
    images, label = _digits()
    model = sparse_mlp.network(kind != "dense")
    if kind == "torch CSR":
        for at, layer in enumerate(model):
            if isinstance(layer, spgrad.nn.SparseLinear):
                model[at] = _Row(layer)
    # torch.optim.Adam refuses parameters of torch.sparse
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def epoch() -> None:
        for rows in torch.randperm(len(label)).split(sparse_mlp.BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), label[rows]).backward()
            optimizer.step()

    return epoch


# A transformer over sequences of 1024 tokens.


class _Masked(nn.Module):
    """Attention of torch with a dense mask, in place of `spgrad.nn.SparseAttention`."""

    def __init__(self, like: spgrad.nn.SparseAttention, mask: torch.Tensor) -> None:
        super().__init__()
        width, heads = like.embed_dim, like.num_heads
        self.layer = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mask = mask

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        """(batch, length, width) to the same."""
        return self.layer(q, k, v, attn_mask=self.mask, need_weights=False)


def _transformed(own: bool) -> Epoch:
    mask = block_attention.pattern(1024)
    model = block_attention.Transformer(mask)
    if not own:
        left_out = ~mask.to_dense().bool()
        for block in model.blocks:
            block.attention = _Masked(block.attention, left_out)
    ciphers = torch.stack(
        [torch.randperm(block_attention.WORDS) for _ in range(block_attention.CIPHERS)]
    )

    def loss() -> torch.Tensor:
        tokens, wanted = block_attention.sequences(4, 1024, ciphers)
        return F.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten())

    return _descent(loss, model.parameters(), lr=5e-3)


def _transformed_flex() -> Epoch:
    from torch.nn.attention import flex_attention as flex

    length, width = 1024, block_attention.WIDTH // block_attention.HEADS
    size = block_attention.SIZE
    near = lambda b, h, q, k: (  # noqa: E731
        ((q // size - k // size).abs() <= 1) | (q < size) | (k < size)
    )
    mask = flex.create_block_mask(near, None, None, length, length, device="cpu")
    q = torch.randn(4, block_attention.HEADS, length, width, requires_grad=True)
    try:
        torch.compile(flex.flex_attention)(q, q, q, block_mask=mask).sum().backward()
    except Exception as error:  # compilers raise what they like
        line = str(error).strip().splitlines()[0]
        raise Unavailable(f"flex_attention on a CPU: {line[:100]}") from error
    raise Unavailable("flex_attention has gradients on a CPU, but has no row here yet")


# Texts by TF-IDF.


@cache
def _texts() -> text_classification.Texts:
    return text_classification.Texts(text_classification.SMALL)


def _classified(kind: str) -> Epoch:
    texts = _texts()
    terms, classes, width = texts.matrix.shape[1], len(texts.subpackages), text_classification.WIDTH
    last = nn.Linear(width, classes)
    if kind == "dense rows":
        table: nn.Module = nn.Linear(terms, width, bias=False)
        changes: torch.optim.Optimizer = torch.optim.Adam(table.parameters(), lr=0.003)
        matrix = texts.matrix.to_dense()
        read: Callable[[torch.Tensor], torch.Tensor] = lambda rows: table(matrix[rows])  # noqa: E731
    else:
        kinds = {OWN: spgrad.nn.SparseEmbeddingBag}
        table = kinds.get(kind, partial(nn.EmbeddingBag, sparse=True))(terms, width, mode="sum")
        changes = torch.optim.SparseAdam(table.parameters(), lr=0.003)
        read = partial(_bags, table, _Bags()) if kind != OWN else partial(_rows, table)
    optimizers = changes, torch.optim.Adam(last.parameters(), lr=0.003)

    def epoch() -> None:
        for rows in texts.train[torch.randperm(len(texts.train))].split(text_classification.BATCH):
            table.zero_grad()
            last.zero_grad()
            h = F.dropout(F.relu(read(rows)), 0.5)
            F.cross_entropy(last(h), texts.label[rows]).backward()
            for optimizer in optimizers:
                optimizer.step()

    return epoch


def _rows(table: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return table(_texts().matrix[rows])


class _Bags:
    """The rows of the matrix as lists of terms with weights, which `nn.EmbeddingBag` reads."""

    def __init__(self) -> None:
        A = _texts().matrix
        self.ptr, self.terms, self.weights = (
            A.crow_indices().long(),
            A.col_indices().long(),
            A.values(),
        )

    def of(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Terms, weights, and where each row starts."""
        counts = self.ptr[rows + 1] - self.ptr[rows]
        starts = counts.cumsum(0) - counts
        at = torch.arange(int(counts.sum())) + (self.ptr[rows] - starts).repeat_interleave(counts)
        return self.terms[at], self.weights[at], starts


def _bags(table: nn.Module, bags: _Bags, rows: torch.Tensor) -> torch.Tensor:
    terms, weights, starts = bags.of(rows)
    return table(terms, starts, per_sample_weights=weights)


PROGRAMS: dict[str, dict[str, Callable[[], Epoch]]] = {
    "graph_attention": {
        OWN: partial(_attention, True),
        "torch_geometric": partial(_attention, False),
    },
    "fixed_edges": {
        OWN: _fixed_edges,
        "compiled spgrad": partial(_fixed_edges, compiled=True),
        "torch CSR": _fixed_edges_torch,
        "torch_geometric": _fixed_edges_geometric,
    },
    "compiled": {  # without dense dropout, which is slower compiled
        OWN: partial(_fixed_edges, hidden=F.relu),
        "compiled spgrad": partial(_fixed_edges, compiled=True, hidden=F.relu),
    },
    "compiled_dropout": {
        OWN: _fixed_edges,
        "compiled spgrad": partial(_fixed_edges, compiled=True),
        "by factors": partial(_fixed_edges, hidden=_dropped_by_factors),
        "compiled factors": partial(_fixed_edges, compiled=True, hidden=_dropped_by_factors),
    },
    "learned_edges": {
        OWN: _learned_edges,
        "torch COO": _learned_edges_torch,
        "torch_geometric": _learned_edges_geometric,
    },
    "neighbor_sampling": {
        OWN: _sampled,
        "NumPy and PyG": _sampled_geometric,
        "torch_geometric": _sampled_by_geometric,
    },
    "recommender": {
        OWN: partial(_recommended, lambda A: A),
        "torch CSR": partial(_recommended, spgrad.to_torch),
        "torch_geometric": partial(_recommended, _Propagation),
    },
    "sparse_mlp": {kind: partial(_network, kind) for kind in (OWN, "dense", "torch CSR")},
    "block_attention": {
        OWN: partial(_transformed, True),
        "dense mask": partial(_transformed, False),
        "flex_attention": _transformed_flex,
    },
    "text_classification": {
        kind: partial(_classified, kind) for kind in (OWN, "dense rows", "EmbeddingBag")
    },
}
"""By program of `examples/` and contender."""
