"""The benchmark of suspending runs here on a pretended GPU, so that it does not fail where it counts."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from live_scheduler import clear
from test_gpu_memory import PretendedDriver, PretendedMemory

from fairway.models.suspend_table import read_suspend_table
from fairway.runtime.daemon import daemon
from fairway.runtime.processes.machine import Nvml, nvidia_machine
from fairway.runtime.processes.site import GpuMemory
from fairway.testing.fake_nvml import FakeGpu, FakeNvml
from fairway.testing.seeds import ALL

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
gpu_suspend: Any = pytest.importorskip("gpu_suspend")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not ALL, reason="takes half a minute")]
CAPACITY = 140 * 10**9
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
gb, steps, out = float(sys.argv[1]), int(sys.argv[2]), open(sys.argv[3], "w", buffering=1)
attempt = Path(os.environ.get("FAIRWAY_LOG", ".")).parent
gpu = Path(os.environ.get("PRETENDED_GPU", "."))
mine, size = gpu / str(os.getpid()), int(gb * 1e9)

def wished():
    try:
        return json.loads((attempt / "memory").read_text())
    except (OSError, ValueError):
        return {}

def say(**what):
    path = attempt / f"moved-{os.getpid()}"
    path.with_suffix(".new").write_text(json.dumps(what))
    path.with_suffix(".new").replace(path)

def asked(signo, frame):
    if wished().get("memory") != "out":
        return
    mine.write_text(str(850_000_000))
    say(state="out", bytes=size)
    while wished().get("memory") == "out":
        time.sleep(0.002)
    mine.write_text(str(size))
    say(state="in", bytes=size)

if os.environ.get("PRETENDED_MOVABLE"):
    signal.signal(signal.SIGRTMIN + 5, asked)
    (attempt / f"moves-{os.getpid()}").touch()
if "PRETENDED_GPU" in os.environ:
    mine.write_text(str(size))
    assert sum(int(one.read_text() or 0) for one in gpu.iterdir() if one.name.isdigit()) <= 140e9, "out of memory"
for step in range(steps):
    time.sleep(0.001)
    out.write(f"{step} {1 / (step + 1)!r} 0.0 {time.time()!r}\\n")
mine.unlink(missing_ok=True)
"""


class BenchmarkMemory(PretendedMemory):
    """The memory of the GPU, and the driver beside it."""

    def __init__(self, folder: Path, ask: Callable[[int], GpuMemory], saver: Path | None = None) -> None:
        super().__init__(folder)
        self._movable = "yes" if saver is not None else ""
        PretendedDriver(self)

    def now(self, gpu: int) -> GpuMemory:
        found = [one for one in self.gpu.iterdir() if one.name.isdigit() and Path(f"/proc/{one.name}").exists()]
        return GpuMemory(CAPACITY - sum(int(one.read_text() or 0) for one in found), CAPACITY)

    def movable(self, launch: Mapping[str, Any]) -> Mapping[str, Any]:
        about = {"PRETENDED_GPU": str(self.gpu), "PRETENDED_MOVABLE": self._movable}
        ranks = [{**rank, "env": {**rank["env"], **about}} for rank in launch["ranks"]]
        return {**super().movable(launch), "ranks": ranks}


def test_every_part_ends_with_equal_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = nvidia_machine(Nvml(FakeNvml([FakeGpu(memory_bytes=CAPACITY)])))
    monkeypatch.setattr(gpu_suspend, "SCRIPT", SCRIPT)
    for module in (gpu_suspend, daemon):
        monkeypatch.setattr(module, "MovableMemory", BenchmarkMemory)
        monkeypatch.setattr(module, "saver_folder", lambda: Path("/"))
    monkeypatch.setattr(gpu_suspend, "found_machine", lambda kind: machine)
    monkeypatch.setattr(gpu_suspend, "_driver", lambda: "580")
    out = tmp_path / "found.json"
    policies = ("--policy", "las:levels=0.5/1/1.5/2,metric=time")
    words = ["x", "--out", str(out), "--gb", "0.5", "--jobs", "3", "--job-gb", "60", "--steps", "1000", *policies]
    monkeypatch.setattr(sys, "argv", words)
    gpu_suspend.main()
    found = json.loads(out.read_text())
    assert {row["way"] for row in found["moves"]} == {*gpu_suspend.WAYS, "moved, pinned ahead"}
    assert all(row["losses_equal"] for row in found["moves"])
    left = {row["way"]: row["left_gb"] for row in found["moves"]}
    assert (left["moved"], left["moved, then driver"], left["driver"]) == (0.85, 0.0, 0.0)
    assert found["cost"]["ratio"] > 0
    (turns,) = found["turns"]
    assert turns["losses_equal"] == [True] * 3, turns
    assert turns["attempts"] == [1] * 3
    table = read_suspend_table(str(out.with_suffix(".csv")))
    assert table.ways.keys() == {"in_place", "moved", "both", "driver"}
    assert len(list(csv.reader(out.with_suffix(".csv").open()))) == 5
    assert not clear(tmp_path)
