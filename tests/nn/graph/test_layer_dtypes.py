"""Features, edges and weights of two dtypes: what is refused, and what converts them."""

import pytest
import torch
from nn_graphs import features, graph

from spgrad import ArgumentValueError, nn

LAYERS = {
    "convolution": lambda: nn.GraphConv(4, 3),
    "sage": lambda: nn.SAGEConv(4, 3),
    "project": lambda: nn.SAGEConv(4, 3, project=True),
    "isomorphism": lambda: nn.GINConv(torch.nn.Linear(4, 3)),
    "attention": lambda: nn.GraphAttention((4, 4), 3),
    "attention_2": lambda: nn.GraphAttention((4, 4), 3, version=2),
}
WITH_WEIGHTS = [name for name in LAYERS if name != "isomorphism"]
PAIRS = [name for name in LAYERS if name != "convolution"]
SINGLE = torch.float32


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_features_of_another_dtype_than_the_weights_are_refused(name):
    x = (features(), features()) if name.startswith("attention") else features()
    with pytest.raises(ArgumentValueError, match="`weight` has dtype float32; `x` has float64"):
        LAYERS[name]()(x, graph())


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("which", [0, 1])
def test_features_of_sources_and_of_targets_have_one_dtype(name, which):
    pair = [features(dtype=SINGLE), features(dtype=SINGLE)]
    pair[which] = pair[which].double()
    found, other = ("float32", "float64")[:: 1 if which == 0 else -1]
    text = rf"`x\[1\]` has dtype {found}; `x\[0\]` has {other}"
    with pytest.raises(ArgumentValueError, match=text):
        LAYERS[name]()(tuple(pair), graph(dtype=SINGLE))


@pytest.mark.parametrize(("version", "other"), [(1, "weight"), (2, "x")])
def test_features_of_edges_have_the_dtype_of_the_weights(version, other):
    layer = nn.GraphAttention(4, 3, edge_dim=1, version=version)
    with pytest.raises(ArgumentValueError, match="float64") as raised:
        layer(features(dtype=SINGLE), graph())
    assert f"`{other}` has dtype float32; `A` has float64" in str(raised.value)


@pytest.mark.parametrize("name", LAYERS)
def test_autocast_converts_features_of_any_dtype(name):
    x, layer = features(dtype=torch.bfloat16), LAYERS[name]()
    x = (x, x.float()) if name in PAIRS else x
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x, graph(dtype=SINGLE))
    wanted = layer(tuple(t.float() for t in x) if name in PAIRS else x.float(), graph(dtype=SINGLE))
    torch.testing.assert_close(y.float(), wanted, atol=0.05, rtol=0.05)


class Rounded(torch.nn.Module):
    """As quantized layers of torch and of others: its weights are ints, or a method gives them."""

    def __init__(self, linear, method):
        super().__init__()
        self.wide, self.bias = linear.weight.detach().round(), 0
        self.weight = self.narrow if method else self.narrow()

    def narrow(self):
        return self.wide.to(torch.int8)

    def forward(self, x):
        return x @ self.wide.T


def test_a_module_without_weights_is_called():
    layer, x, A = nn.GraphConv(4, 4), features(dtype=SINGLE), graph(dtype=SINGLE)
    layer.lin = torch.nn.Identity()
    torch.testing.assert_close(layer(x, A), nn.gcn_norm(A) @ x)


@pytest.mark.parametrize("method", [False, True])
def test_quantized_weights_are_those_of_no_dtype(method):
    layer = nn.GraphConv(4, 3)
    wanted = nn.GraphConv(4, 3)
    layer.lin = Rounded(wanted.lin, method)
    wanted.lin.weight.data.round_()
    x, A = features(dtype=SINGLE), graph(dtype=SINGLE)
    torch.testing.assert_close(layer(x, A), wanted(x, A))
