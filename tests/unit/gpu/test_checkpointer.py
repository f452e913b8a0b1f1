"""The helper that asks the driver: its calls, its answers, and what it says about a driver that cannot."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairway.gpu.checkpointer import CheckpointError, CheckpointServer, Driver
from fairway.testing.waiting import WAIT_S

CC = shutil.which("cc") or shutil.which("gcc")
DRIVER = """
#include <stdlib.h>
/* Processes 100 to 199 use CUDA. 150 cannot be saved, 160 does not come back. */
static int state[200];
int cuInit(unsigned flags) { return 0; }
int cuCheckpointProcessGetState(int pid, int *out) {
  if (pid < 100 || pid > 199) return 400;
  *out = state[pid]; return 0;
}
int cuCheckpointProcessLock(int pid, void *terms) { state[pid] = 1; return 0; }
int cuCheckpointProcessCheckpoint(int pid, void *terms) { if (pid == 150) return 801; state[pid] = 2; return 0; }
int cuCheckpointProcessRestore(int pid, void *terms) { if (pid == 160) return 2; state[pid] = 1; return 0; }
int cuCheckpointProcessUnlock(int pid, void *terms) { state[pid] = 0; return 0; }
"""


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    if CC is None:
        pytest.skip("no C compiler")
    code, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    code.write_text(DRIVER)
    subprocess.run([CC, "-shared", "-fPIC", "-o", str(library), str(code)], check=True)
    return Driver(str(library))


@pytest.fixture
def server(tmp_path: Path, driver: Driver) -> Iterator[Path]:
    path = tmp_path / "helper.sock"
    server = CheckpointServer(path, driver)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield path
    server.close()
    thread.join(10)
    assert not thread.is_alive()


def ask(path: Path, line: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(str(path))
        one.sendall(line)
        one.shutdown(socket.SHUT_WR)
        told: dict[str, Any] = json.loads(one.makefile("rb").readline())
        return told


def test_memory_goes_out_and_comes_back(server: Path, driver: Driver) -> None:
    asked = {"do": "out", "pids": [7, 101, 102], "limit_s": 5.0}
    assert ask(server, json.dumps(asked).encode() + b"\n") == {"pids": [101, 102]}
    assert [driver.state(pid) for pid in (101, 102)] == [2, 2]
    assert ask(server, json.dumps({**asked, "do": "in"}).encode() + b"\n") == {"pids": [101, 102]}
    assert [driver.state(pid) for pid in (101, 102)] == [0, 0]


def test_all_go_on_if_one_cannot_be_saved(server: Path, driver: Driver) -> None:
    told = ask(server, json.dumps({"do": "out", "pids": [101, 150], "limit_s": 5.0}).encode() + b"\n")
    assert "managed, or shared between processes" in told["problem"]
    assert [driver.state(pid) for pid in (101, 150)] == [0, 0]


def test_memory_that_finds_no_room_can_be_asked_for_again(server: Path, driver: Driver) -> None:
    asked = {"do": "out", "pids": [160], "limit_s": 5.0}
    ask(server, json.dumps(asked).encode() + b"\n")
    told = ask(server, json.dumps({**asked, "do": "in"}).encode() + b"\n")
    assert told == {"problem": "there is not enough GPU memory (restore of process 160)"}
    assert driver.state(160) == 2


def test_processes_without_cuda_have_nothing_to_move(server: Path) -> None:
    assert ask(server, b'{"do": "out", "pids": [7], "limit_s": 5}\n') == {"pids": []}


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"[]\n", b"nonsense\n", b'{"do": "out", "pids": ["x"]}\n'])
def test_a_request_that_makes_no_sense_is_answered(server: Path, line: bytes) -> None:
    assert "makes no sense" in ask(server, line)["problem"]


def test_a_machine_without_a_driver_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="570 or later"):
        Driver(str(tmp_path / "libcuda.so.1"))
    with pytest.raises(CheckpointError, match="570 or later"):
        Driver("libc.so.6")


def test_the_helper_ends_when_its_scheduler_does(tmp_path: Path, driver: Driver) -> None:
    code = (
        "import sys; sys.argv = ['x', sys.argv[1]]; from fairway.gpu import checkpointer as c; "
        f"c.Driver.__init__.__defaults__ = ({str(tmp_path / 'libcuda.so.1')!r},); c.main()"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "s")]
    helper = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert helper.stdout is not None
    assert helper.stdin is not None
    assert helper.stdout.readline() == "ready\n"
    assert ask(tmp_path / "s", b'{"do": "in", "pids": [101], "limit_s": 5}\n') == {"pids": [101]}
    helper.stdin.close()
    assert helper.wait(timeout=WAIT_S) == 0
    assert not (tmp_path / "s").exists()
