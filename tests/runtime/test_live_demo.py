"""What `make run` does: real jobs, shown, preempted and resumed, beside their forecast; nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairway.testing.waiting import WAIT_S, wait_for

FAIRWAY = [sys.executable, "-m", "fairway", "demo", "--live"]


def _processes_of(folder: Path) -> list[str]:
    """The command lines of processes that have to do with a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                about = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) + b"/fairway-demo-" in about:
                found.append(about.split(b"\0")[0].decode())
    return found


@pytest.mark.slow
def test_real_jobs_run_beside_their_forecast(tmp_path: Path) -> None:
    command = [*FAIRWAY, "--jobs", "6", "--out", str(tmp_path / "out")]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    told = subprocess.run(command, capture_output=True, text=True, timeout=5 * WAIT_S, env=env, check=False)
    assert told.returncode == 0, told.stderr
    assert len(re.findall(r"completed after", told.stdout)) == 6
    assert "suspended in place" in told.stdout or "save and stop" in told.stdout
    assert "resumes on GPU" in told.stdout
    assert re.search(r"last job ended after +[\d.]+ s +[\d.]+ s +[+-][\d.]+ %", told.stdout), told.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert "(live)" in page
    assert "(simulated)" in page
    assert not list(tmp_path.glob("fairway-demo-*"))
    assert not _processes_of(tmp_path)


@pytest.mark.slow
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    demo = subprocess.Popen(
        [*FAIRWAY, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "job  3  starts" in line:
                break
        assert _processes_of(tmp_path)
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=WAIT_S)
    finally:
        demo.kill()
    assert demo.returncode == 130, errors
    wait_for(lambda: not _processes_of(tmp_path), "its processes to end")
    assert not list(tmp_path.glob("fairway-demo-*"))
