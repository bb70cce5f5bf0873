"""One training script with everything that a script has: it runs from data to an exported file."""

import copy
import io
import multiprocessing

import pytest
import torch
import torch.distributed as dist
from samples import made
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import swa_utils
from torch.utils.data import DataLoader

import spgrad

NODES, STEPS = 6, 4


class Graphs(torch.utils.data.Dataset):
    """Graphs of six nodes with features and a label; each has another number of edges."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        x = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(i))
        return made("csr", (NODES, NODES), seed=i, dtype=torch.float32), x, i % 2


class Network(nn.Module):
    """A graph of the batch, one that is a buffer, one that is trained, and sparse layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("fixed", made("csr", (NODES, NODES), dtype=torch.float32))
        self.learned = nn.Parameter(made("csr", (NODES, NODES), seed=1, dtype=torch.float32))
        self.first = spgrad.nn.SparseLinear(3, 8, density=0.5)
        self.second = nn.Linear(8, 2)

    def forward(self, A, x):
        h = self.first(x).relu()  # (b, nodes, 8)
        h = A @ h + self.fixed @ h + self.learned @ h
        return self.second(h.relu().mean(1))


class Script:
    """The parts of a run; `step` is one step of training."""

    def __init__(self):
        self.network = spgrad.nn.parametrize_values(Network())
        self.parallel = DistributedDataParallel(self.network)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=0.05)
        self.scaler = torch.amp.GradScaler("cpu")
        self.average = swa_utils.AveragedModel(
            self.network, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)
        )
        self.parts = self.network, self.optimizer, self.scaler, self.average

    def step(self, A, x, label):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(self.parallel(A, x), label)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.average.update_parameters(self.network)
        return loss.item()

    def save(self):
        file = io.BytesIO()
        torch.save([part.state_dict() for part in self.parts], file)
        file.seek(0)
        return file

    def resume(self, file):
        for part, state in zip(self.parts, torch.load(file, weights_only=True), strict=True):
            part.load_state_dict(state)


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/start", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_script_from_data_to_an_exported_file(start):
    if start not in multiprocessing.get_all_start_methods():
        pytest.skip("the system starts processes otherwise")
    options = {"num_workers": 1, "multiprocessing_context": start}
    batches = list(DataLoader(Graphs(), batch_size=4, **options))
    script, losses = Script(), []
    for _ in range(STEPS):
        losses += [script.step(*batch) for batch in batches]
    assert sum(losses[-2:]) < sum(losses[:2])

    again = Script()
    again.resume(script.save())
    assert again.step(*batches[0]) == script.step(*batches[0])
    for own, other in zip(script.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(own, other)

    A, x, _ = batches[0]
    network = copy.deepcopy(script.network).eval()
    wanted = network(A, x)
    torch.testing.assert_close(script.average.module(A, x).shape, wanted.shape)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A, x), wanted)

    file = io.BytesIO()
    torch.export.save(torch.export.export(network, (A, x)), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(A, x), wanted)

    plain = spgrad.nn.unparametrize_values(network)
    assert isinstance(plain.learned, spgrad.SparseTensor)
    torch.testing.assert_close(plain(A, x), wanted)
