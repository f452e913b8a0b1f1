"""How busy and how full GPUs are, with a driver that says what a test wants, or nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairway.api import views
from fairway.api.disk_space import DiskSpace
from fairway.api.prometheus import Figures
from fairway.runtime.daemon.daemon import Daemon, Options
from fairway.runtime.processes import gpu_loads
from fairway.runtime.processes.gpu_loads import EVERY_S, OLD_S, GpuLoads
from fairway.runtime.processes.hands import Hands
from fairway.runtime.processes.machine import Nvml, nvidia_machine
from fairway.runtime.processes.ray_site import RaySite
from fairway.runtime.processes.remote_machines import RemoteMachine
from fairway.runtime.processes.site import GpuLoad
from fairway.testing.fake_nvml import FakeGpu, FakeNvml

NOW = 1000.0


class _Clock:
    def __init__(self) -> None:
        self.now_s = NOW

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(gpu_loads, "time", clock)
    return clock


def _gpus() -> list[FakeGpu]:
    return [FakeGpu(uuid=f"GPU-{number}", percent=25 * number, used_bytes=number << 30) for number in range(3)]


def _answered() -> None:
    """Wait for the thread that asks the driver."""
    for thread in threading.enumerate():
        if thread.name == "gpu-loads":
            thread.join(10)


def _loads(library: FakeNvml) -> GpuLoads:
    return GpuLoads(Nvml(library), [gpu.uuid for gpu in library.all])


def test_each_gpu_says_how_busy_and_how_full_it_is() -> None:
    loads = [Nvml(FakeNvml(_gpus())).load(f"GPU-{number}") for number in range(3)]
    assert loads == [GpuLoad(0.0, 0), GpuLoad(0.25, 1 << 30), GpuLoad(0.5, 2 << 30)]


@pytest.mark.parametrize(
    ("about", "load"),
    [
        ({"percent": None}, GpuLoad(None, 1 << 30)),
        ({"percent": 101}, GpuLoad(None, 1 << 30)),
        ({"used_bytes": None}, GpuLoad(0.25, None)),
        ({"used_bytes": 1 << 60}, GpuLoad(0.25, None)),
        ({"lost": True}, GpuLoad(None, None)),
        ({"uuid": "another"}, GpuLoad(None, None)),
    ],
)
def test_what_the_driver_does_not_say_is_none(about: dict[str, Any], load: GpuLoad) -> None:
    gpus = _gpus()
    for name, value in about.items():
        setattr(gpus[1], name, value)
    assert Nvml(FakeNvml(gpus)).load("GPU-1") == load


def test_the_driver_is_asked_beside_and_not_too_often(clock: _Clock) -> None:
    gpus = _gpus()
    loads = _loads(FakeNvml(gpus))
    loads.look()
    _answered()
    assert loads.look()[1] == GpuLoad(0.25, 1 << 30)
    gpus[1].lost = True
    clock.now_s += EVERY_S / 2
    loads.look()
    _answered()
    assert loads.look()[1] == GpuLoad(0.25, 1 << 30), "it was asked again too soon"
    clock.now_s += EVERY_S / 2
    loads.look()
    _answered()
    assert loads.look() == {0: GpuLoad(0.0, 0), 1: GpuLoad(), 2: GpuLoad(0.5, 2 << 30)}


def test_a_driver_that_hangs_holds_nobody_up_and_its_old_answers_are_dropped(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, hangs, asked = FakeNvml(_gpus()), threading.Event(), []
    loads = _loads(library)
    loads.look()
    _answered()

    def stuck(gpu: FakeGpu) -> Any:
        asked.append(gpu)
        hangs.wait(10)
        return FakeNvml.nvmlDeviceGetMemoryInfo(library, gpu)

    monkeypatch.setattr(library, "nvmlDeviceGetMemoryInfo", stuck)
    try:
        for passed_s, known in ((EVERY_S, 3), (OLD_S, 3), (OLD_S + 1, 0), (10 * OLD_S, 0)):
            clock.now_s = NOW + passed_s
            assert len(loads.look()) == known
        assert len(asked) <= 1, "one question at a time"
    finally:
        hangs.set()
    _answered()
    assert len(loads.look()) == 3, "it answers again"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    gpus = _gpus()
    gpus[2].percent = gpus[2].used_bytes = None
    machine = nvidia_machine(Nvml(FakeNvml(gpus)))
    daemon = Daemon(Options(tmp_path / "state", policy="fifo"), machine)
    yield daemon
    daemon.close()


def test_nodes_and_figures_tell_it(daemon: Daemon, tmp_path: Path) -> None:
    daemon._watch.look()
    _answered()
    (node,) = views.nodes(daemon)
    told = [(gpu["utilisation"], gpu["memory_used_bytes"]) for gpu in node["gpus"]]
    assert told == [(0.0, 0), (0.25, 1 << 30), (None, None)]
    text = Figures(daemon, DiskSpace(tmp_path)).text().decode()
    name = node["name"]
    assert f'fairway_gpu_utilisation{{gpu="1",node="{name}"}} 0.25' in text
    assert f'fairway_gpu_memory_used_bytes{{gpu="1",node="{name}"}} 1.073741824e+09' in text
    assert 'gpu="2"' not in text


def test_virtual_gpus_say_nothing(tmp_path: Path) -> None:
    daemon = Daemon(Options(tmp_path / "state", policy="fifo", gpus="2"))
    try:
        daemon._watch.look()
        told = {(gpu["utilisation"], gpu["memory_used_bytes"]) for gpu in views.nodes(daemon)[0]["gpus"]}
        assert told == {(None, None)}
    finally:
        daemon.close()


def test_hands_tell_it_with_their_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(_gpus()))
    hands = Hands("n1", tmp_path, "nvidia", environment={})
    try:
        version = hands.news("", ())["version"]
        _answered()
        told = hands.news("", ())
        assert told["loads"] == {"0": [0.0, 0], "1": [0.25, 1 << 30], "2": [0.5, 2 << 30]}
        assert told["version"] == version, "it is no news by itself"
    finally:
        hands.close()


def test_what_machines_told_is_known_while_they_answer() -> None:
    site = RaySite.__new__(RaySite)
    seen = {"loads": {"0": [0.5, 7], "1": [None, None]}}
    site._machines = {
        "a": RemoteMachine("a", gpus=(0, 1), ready=True, seen={}),
        "b": RemoteMachine("b", gpus=(2, 3), ready=True, seen=seen),
        "c": RemoteMachine("c", gpus=(4, 5), ready=False, seen=seen),
    }
    assert site.gpu_loads() == {2: GpuLoad(0.5, 7), 3: GpuLoad()}
