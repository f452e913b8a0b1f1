"""A training with a session that is throttled: it rests between steps, and nobody has to stop its processes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_processes import end_of, processes_of, said, start, state_of, wait_for
from training import ROOT

from fairway.runtime.processes import containment, keeper

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
TRAINING = """
import time
from fairway import train
from fairway.train import pace
# On a busy machine a step takes long. The keeper would take over then.
pace.LONGEST_STEP_S = 1000.0
session = train.session()
for step in session.steps():
    if step == 1: print('ready', flush=True)
    end = time.process_time() + 0.02
    while time.process_time() < end: pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "attempt-1"
    left = processes_of(str(tmp_path))
    containment.kill_strays(tmp_path / "attempt-1", str(tmp_path))
    assert not left, f"processes {left} were left behind"


def computed_s(pid: int) -> float:
    fields = keeper.stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) * TICK_S


def test_a_session_keeps_to_the_throttle_without_being_stopped(folder: Path) -> None:
    env = {
        "PYTHONPATH": str(ROOT / "src"),
        "FAIRWAY_ATTEMPT": str(folder.parent),
        "FAIRWAY_REPORT": str(folder.parent / "reports.jsonl"),
        "FAIRWAY_GRACE_SECONDS": "20",
    }
    running = start(folder, [sys.executable, "-c", TRAINING], env=env)
    said(running, "ready")
    pid = json.loads((folder / "ranks.json").read_text())[0][0]
    running.throttle(0.2)
    wait_for((folder / "eased-0").exists, "the session to say that it rests by itself")
    time.sleep(0.3)
    before_s, began_s, stopped = computed_s(pid), time.monotonic(), 0
    while time.monotonic() < began_s + 4.0:
        stopped += state_of(pid) == "T"
        time.sleep(0.005)
    part = (computed_s(pid) - before_s) / (time.monotonic() - began_s)
    # On a machine that is so busy that it says nothing for three seconds, the keeper may have to help.
    assert stopped <= 20
    assert 0.0 < part < 0.45
    running.throttle(1.0)
    wait_for(lambda: state_of(pid) == "R", "it to compute without a rest")
    running.stop()
    assert end_of(running).codes == (75,)
