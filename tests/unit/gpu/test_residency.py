"""State that moves between a device and host memory: the same tensors, the same bits, and no needless copy."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fairway.gpu.device import RandomNumbers, TorchCpu
from fairway.gpu.residency import CallOrder, CopyStreams, MovableState

torch: Any = pytest.importorskip("torch")
DEVICE = TorchCpu()
RANDOM = RandomNumbers(DEVICE)
MADE: list[str] = []


class Job:
    """A small training with dropout and batch norm."""

    def __init__(self, seed: int, optimizer: str = "AdamW") -> None:
        self.device, self.name = DEVICE, f"{seed} {len(MADE)}"
        MADE.append(self.name)
        RANDOM.use(self.name)
        torch.manual_seed(seed)
        nn = torch.nn
        first = [nn.Embedding(20, 8), nn.Flatten(), nn.Linear(32, 16), nn.BatchNorm1d(16)]
        self.model = nn.Sequential(*first, nn.Dropout(0.3), nn.Linear(16, 20))
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=0.01)

    def step(self) -> float:
        RANDOM.use(self.name)
        inputs, labels = torch.randint(20, (5, 4)), torch.randint(20, (5,))
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def _movable(job: Job, copies: CopyStreams) -> MovableState:
    order = CallOrder(job.device, job.model)
    job.step()
    return MovableState(job.device, copies, job.model, job.optimizer, order.end())


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adagrad"])
def test_losses_are_the_same_with_and_without_switches(optimizer: str) -> None:
    alone = [Job(seed, optimizer) for seed in (1, 2)]
    expected = [[job.step() for _ in range(40)] for job in alone]
    jobs = [Job(seed, optimizer) for seed in (1, 2)]
    copies = CopyStreams(jobs[0].device)
    states = [_movable(job, copies) for job in jobs]
    found: list[list[float]] = [[], []]
    for turn in range(78):
        job, state, other = jobs[turn % 2], states[turn % 2], states[1 - turn % 2]
        state.load(most_bytes=600)
        other.unload(None, job.device.mark(None))
        assert other.here_bytes == 0
        state.load()
        found[turn % 2].append(job.step())
    assert found == [losses[1:] for losses in expected]
    for one, two in zip(alone, jobs, strict=True):
        two_state = states[jobs.index(two)]
        two_state.finish_loading()
        for name, tensor in one.model.state_dict().items():
            assert torch.equal(tensor, two.model.state_dict()[name])


def test_tensors_that_have_left_take_no_memory() -> None:
    job = Job(1)
    state = _movable(job, CopyStreams(job.device))
    assert state.is_resident
    state.unload(None, None)
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in job.model.parameters())
    assert all(parameter.grad is None for parameter in job.model.parameters())
    state.load()
    assert state.is_resident
    assert state.here_bytes == state.size


def test_what_has_not_changed_is_not_copied_back() -> None:
    job = Job(1)
    for parameter in job.model.parameters():
        parameter.requires_grad_(False)
    order = CallOrder(job.device, job.model.eval())
    job.model(torch.randint(20, (5, 4)))
    state = MovableState(job.device, CopyStreams(job.device), job.model, None, order.end())
    flats = [flat for group in state.groups for flat in group.flats]
    assert not any(flat.has_changed() for flat in flats)
    with torch.no_grad():
        job.model[2].weight.add_(1)
    assert [flat.has_changed() for flat in flats].count(True) == 1
    state.unload(None, None)
    state.load()
    assert not any(flat.has_changed() for flat in flats)


def test_layers_wait_for_their_groups_whoever_calls_them() -> None:
    """The weights of a projection that only its parent uses belong to the parent."""
    torch.manual_seed(0)
    model = torch.nn.MultiheadAttention(8, 2)
    device = TorchCpu()
    order = CallOrder(device, model)
    inputs = torch.randn(3, 2, 8)
    model(inputs, inputs, inputs)
    state = MovableState(device, CopyStreams(device), model, None, order.end())
    state.unload(None, None)
    state.load()
    assert all(group.arrived is not None for group in state.groups)
    model(inputs, inputs, inputs)
    assert all(group.arrived is None for group in state.groups)


def test_weights_that_share_a_storage_stay_together_at_its_beginning() -> None:
    whole = torch.randn(24)
    model = torch.nn.Linear(4, 4)
    model.weight.data, model.bias.data = whole[:16].view(4, 4), whole[16:20]
    before = [one.detach().clone() for one in (model.weight, model.bias)]
    device = TorchCpu()
    state = MovableState(device, CopyStreams(device), model, None, {})
    assert model.weight.storage_offset() == 0
    assert model.bias.storage_offset() == 16
    assert model.bias.untyped_storage().data_ptr() == model.weight.untyped_storage().data_ptr()
    assert torch.equal(model.weight, before[0])
    assert torch.equal(model.bias, before[1])
    assert len(state.groups) == 1


def test_each_job_has_random_numbers_of_its_own() -> None:
    numpy, numbers = pytest.importorskip("numpy"), RandomNumbers(DEVICE)

    def draw(job: str) -> list[float]:
        numbers.use(job)
        return [random.random(), float(numpy.random.rand()), float(torch.rand(()))]

    alone = [draw("a") for _ in range(4)]
    numbers.forget("a")
    mixed = []
    for _ in range(4):
        mixed.append(draw("a"))
        draw("b")
    assert mixed == alone
    state = numbers.state("a")
    following = draw("a")
    numbers.use("b")
    numbers.set("a", state)
    assert draw("a") == following
