"""No layer computes before its weights have arrived, on a device to which copies happen only when they are waited for.

Until then the memory of a group holds what is not a number, so a layer that does not wait spoils the loss.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairway.gpu.device import RandomNumbers, TorchCpu
from fairway.gpu.residency import CallOrder, CopyStreams, MovableState, can_be_followed

torch: Any = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
gpu_models: Any = pytest.importorskip("gpu_models")


class LateDevice(TorchCpu):
    """Copies to the device are done when a stream waits for them, and not before."""

    def __init__(self) -> None:
        super().__init__()
        self._stream: Any = None
        self._hosts: set[int] = set()
        self.waits = 0

    def new_stream(self) -> Any:
        return []

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self._stream = self._stream, stream
        yield
        self._stream = before

    def stream(self) -> Any:
        return self._stream

    def mark(self, stream: Any) -> Any:
        return stream, 0 if stream is None else len(stream)

    def wait(self, stream: Any, mark: Any) -> None:
        self.waits += 1
        queue, count = mark
        for at in range(count) if queue is not None else ():
            queue[at]()
            queue[at] = _nothing

    def seconds(self, begin: Any, end: Any) -> float:
        return 1e-3

    def host_buffer(self, size: int) -> Any:
        made = super().host_buffer(size)
        self._hosts.add(made.data_ptr())
        return made

    def refill(self, buffer: Any, size: int) -> None:
        super().refill(buffer, size)
        buffer.fill_(255)

    def copy(self, source: Any, destination: Any) -> None:
        if source.data_ptr() in self._hosts:
            self._stream.append(lambda: destination.copy_(source))
        else:
            destination.copy_(source)


def _nothing() -> None:
    return


def _tied() -> Any:
    model = gpu_models.Translation(50, 16, 1, 2)
    model.project.weight = model.embed.weight

    def make() -> tuple[Any, ...]:
        pairs = torch.randint(50, (3, 4, 5))
        return pairs[0], pairs[1], pairs[2]

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return gpu_models.Training(model, optimizer, make, gpu_models._cross_entropy)


def _jobs(make: Callable[[], Any], random: RandomNumbers) -> list[Any]:
    jobs = []
    for seed in (1, 2):
        random.forget(str(seed))
        random.use(str(seed))
        torch.manual_seed(seed)
        jobs.append(make())
    return jobs


def _step(job: Any, seed: int, random: RandomNumbers) -> float:
    random.use(str(seed))
    return float(job.step()["loss"])


@pytest.mark.parametrize("name", [*gpu_models.NAMES, "tied"])
def test_layers_wait_for_their_weights(name: str) -> None:
    device = LateDevice()
    random, copies = RandomNumbers(device), CopyStreams(device)

    def make() -> Any:
        return _tied() if name == "tied" else gpu_models.training(name, "cpu", quick=True)

    alone = [[_step(job, seed, random) for _ in range(8)] for seed, job in enumerate(_jobs(make, random), 1)]
    jobs, states, found = _jobs(make, random), [], [[], []]
    for at, job in enumerate(jobs):
        order = CallOrder(device, job.model)
        found[at].append(_step(job, at + 1, random))
        called = order.end()
        assert can_be_followed(job.model, called)
        states.append(MovableState(device, copies, job.model, job.optimizer, called))
    assert len(states[0].groups) > states[0].forward_groups >= 2
    for _ in range(7):
        for at, job in enumerate(jobs):
            states[1 - at].unload(None, device.mark(None))
            states[at].load(most_bytes=400.0)
            states[at].load()
            found[at].append(_step(job, at + 1, random))
    assert found == alone
    assert device.waits > 0


def test_weights_that_no_module_uses_cannot_be_followed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    order = CallOrder(TorchCpu(), model)
    model[0](torch.ones(2))
    assert not can_be_followed(model, order.end())


def test_a_layer_that_does_not_wait_is_noticed() -> None:
    """The canary: without the hooks the loss is spoilt."""
    device = LateDevice()
    random = RandomNumbers(device)
    job = _jobs(lambda: gpu_models.training("VGG19", "cpu", quick=True), random)[0]
    order = CallOrder(device, job.model)
    _step(job, 1, random)
    state = MovableState(device, CopyStreams(device), job.model, job.optimizer, order.end())
    state.close()
    state.unload(None, device.mark(None))
    state.load()
    assert math.isnan(_step(job, 1, random))
