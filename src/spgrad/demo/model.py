"""A two-layer graph network whose edge weights may be learned, and its training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, values
from spgrad.demo.data import Graph, Split

HIDDEN = 16


class GraphNetwork(nn.Module):
    """A relu(A X W1) W2 of Kipf and Welling (2017), where A may be learned.

    A learned weight is the given one times exp(s), with one parameter s for each edge that
    starts at 0: weights stay positive, and weight decay on s pulls them back to the given ones.
    """

    def __init__(self, graph: Graph, *, learn_edges: bool) -> None:
        super().__init__()
        self.adjacency, self.features = graph.adjacency, graph.features
        self.first = nn.Parameter(torch.empty(graph.features.shape[1], HIDDEN))
        self.second = nn.Parameter(torch.empty(HIDDEN, len(graph.classes)))
        self.bias = nn.Parameter(torch.zeros(HIDDEN))
        self.scale = nn.Parameter(torch.zeros(graph.adjacency.nse)) if learn_edges else None
        nn.init.xavier_uniform_(self.first)
        nn.init.xavier_uniform_(self.second)

    def weights(self) -> SparseTensor:
        """A, with the gradient attached to the parameter of each edge."""
        if self.scale is None:
            return self.adjacency
        return from_values(values(self.adjacency) * self.scale.exp(), self.adjacency)

    def forward(self) -> torch.Tensor:
        """Scores of the classes (n, classes)."""
        A, X = self.weights(), self.features
        if self.training:  # dropout of the specified values; the others are zero anyway
            X = from_values(F.dropout(values(X)), X)
        hidden = F.relu(A @ (X @ self.first) + self.bias)
        return A @ (F.dropout(hidden, training=self.training) @ self.second)


@dataclass
class History:
    """The results of one training run; lists have one number for each epoch.

    Attributes:
        loss: Cross entropy on the training nodes, with dropout.
        validation: Accuracy on the validation nodes.
        best: The epoch with the highest validation accuracy, the first of equals.
        test: Accuracy on the test nodes after that epoch.
        scale: Learned weight over given weight of each edge after that epoch (nse,); None if the
            weights were not learned.
    """

    loss: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best: int = -1
    test: float = 0.0
    scale: torch.Tensor | None = None


def train(
    graph: Graph,
    parts: Split,
    *,
    learn_edges: bool,
    epochs: int,
    seed: int,
    advance: Callable[[], None],
    device: torch.device | str = "cpu",
) -> History:
    """Trains one network, and tests it as it was when validation accuracy was highest.

    Args:
        graph: The graph.
        parts: Nodes for each purpose.
        learn_edges: Whether the weights of the edges are parameters too.
        epochs: Number of steps of Adam, each on all training nodes.
        seed: Seed of the initial weights and of dropout.
        advance: Called after each epoch.
        device: Where the network and the graph are.

    Returns:
        The history of the run; its tensors are on the CPU.
    """
    history = History()
    graph, parts, device = graph.to(device), parts.to(device), torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = GraphNetwork(graph, learn_edges=learn_edges).to(device)
        optimizer = _optimizer(model)
        for epoch in range(epochs):
            model.train()
            optimizer.zero_grad()
            loss = F.cross_entropy(model()[parts.train], graph.labels[parts.train])
            loss.backward()
            optimizer.step()
            _evaluate(model, graph, parts, epoch, history)
            history.loss.append(loss.item())
            advance()
    return history


def _optimizer(model: GraphNetwork) -> torch.optim.Optimizer:
    groups = [
        {"params": [model.first], "weight_decay": 5e-4},  # on the first layer only, as in the paper
        {"params": [model.bias, model.second]},
    ]
    if model.scale is not None:
        groups.append({"params": [model.scale], "weight_decay": 5e-4})
    return torch.optim.Adam(groups, lr=0.01)


def _evaluate(
    model: GraphNetwork, graph: Graph, parts: Split, epoch: int, history: History
) -> None:
    model.eval()
    with torch.no_grad():
        right = model().argmax(1) == graph.labels
    accuracy = right[parts.validation].float().mean().item()
    if accuracy > max(history.validation, default=-1.0):
        history.best, history.test = epoch, right[parts.test].float().mean().item()
        if model.scale is not None:
            history.scale = model.scale.detach().exp().cpu()
    history.validation.append(accuracy)
