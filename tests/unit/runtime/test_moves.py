"""How a keeper has the memory of suspended ranks moved: calls that hang or fail, and files that make no sense."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairway.gpu import seat
from fairway.gpu.movable import mover
from fairway.runtime.processes import moves
from fairway.runtime.processes.moves import DriverCall, MovedMemory
from fairway.testing.waiting import wait_for


class PretendedRanks:
    """A keeper with one rank, which is this process."""

    def __init__(self, directory: Path, helper: str = "") -> None:
        self.directory = directory
        self.launch: dict[str, Any] = {"checkpointer": helper}
        self.stopped, self.cause, self.problem = True, "", ""
        self.done: list[str] = []

    def processes(self) -> list[int]:
        return [os.getpid()]

    def rank_folder(self) -> Path:
        return self.directory

    def signal_all(self, signo: int) -> None:
        self.done.append(signal.Signals(signo).name)

    def stand_still(self) -> None:
        self.done.append("stands still")

    def is_back(self) -> None:
        self.done.append("is back")

    def give_up(self, problem: str) -> None:
        self.problem = problem


def helper(path: Path, answer: Callable[[dict[str, Any]], dict[str, Any] | None]) -> str:
    """A helper that answers in some way, or never (None)."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    kept = []

    def serve() -> None:
        while True:
            one, _ = listening.accept()
            told = answer(json.loads(one.makefile("rb").readline()))
            if told is None:
                kept.append(one)
            else:
                one.sendall(json.dumps(told).encode() + b"\n")
                one.close()

    threading.Thread(target=serve, daemon=True).start()
    return str(path)


def where(ranks: PretendedRanks) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((ranks.directory / "where.json").read_text())
    return told


def run(memory: MovedMemory, place: str) -> None:
    """Go on until the memory is somewhere."""

    def there() -> bool:
        memory.step(time.monotonic())
        return memory.place == place and memory.next_s == float("inf")

    wait_for(there, f"its memory to be {place}")


def wish(ranks: PretendedRanks, **wish: Any) -> None:
    (ranks.directory / "memory").write_text(json.dumps(wish))


def test_a_call_that_hangs_is_given_up_and_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "ANSWER_S", -5.0)
    monkeypatch.setattr(moves, "RETURN_S", 0.3)
    asked: list[str] = []

    def answer(told: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(told["do"])
        return None if told["do"] == "out" else {"pids": []}

    ranks = PretendedRanks(tmp_path, helper(tmp_path / "s", answer))
    memory = MovedMemory(ranks)
    wish(ranks, memory="out", most_bytes=1)
    memory.look()
    run(memory, "gpu")
    assert asked == ["out", "in"]
    assert where(ranks)["problem"] == "the driver does not answer"
    assert ranks.done[-1] == "is back"


def test_memory_that_finds_no_room_ends_the_job_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "RETURN_S", 1.5)
    tries: list[str] = []

    def answer(told: dict[str, Any]) -> dict[str, Any]:
        tries.append(told["do"])
        return {"pids": [1]} if told["do"] == "out" else {"problem": "there is not enough GPU memory"}

    ranks = PretendedRanks(tmp_path, helper(tmp_path / "s", answer))
    memory = MovedMemory(ranks)
    wish(ranks, memory="out", most_bytes=1)
    memory.look()
    run(memory, "host")
    wish(ranks, memory="in")
    ranks.stopped = False
    memory.come_back()

    def gives_up() -> bool:
        memory.step(time.monotonic())
        return bool(ranks.problem)

    wait_for(gives_up, "the keeper to give up")
    assert ranks.problem == "its GPU memory could not be brought back: there is not enough GPU memory"
    assert tries.count("in") >= 2


@pytest.mark.parametrize("how", ["answers", "refuses", "hangs"])
def test_the_driver_is_asked_for_the_rest_of_memory_that_is_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(moves, "ANSWER_S", -5.0)
    monkeypatch.setattr(moves, "RETURN_S", 0.3)
    asked: list[str] = []

    def answer(told: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(told["do"])
        if told["do"] == "in" or how == "answers":
            return {"pids": told["pids"]}
        return {"problem": "no"} if how == "refuses" else None

    ranks = PretendedRanks(tmp_path, helper(tmp_path / "s", answer))
    memory = MovedMemory(ranks)
    memory.place, memory._ways = "host", ["moved"]
    wish(ranks, memory="out", most_bytes=1)
    memory.look()
    assert not asked
    wish(ranks, memory="out", most_bytes=100, held_bytes=30, all=True)
    memory.look()
    assert memory.place == "leaving"
    run(memory, "host")
    told = where(ranks)
    # A call that hangs may have begun, so it is undone before the job goes on.
    assert told["ways"] == (["moved"] if how == "refuses" else ["moved", "driver"])
    assert told["problem"] == {"answers": "", "refuses": "no", "hangs": "the driver does not answer"}[how]
    assert told["bytes"] == (30 if how == "answers" else 0)
    wish(ranks, memory="in")
    ranks.stopped = False
    memory.come_back()
    run(memory, "gpu")
    assert asked == ["out"] if how == "refuses" else ["out", "in"]
    assert ranks.done[-1] == "is back"


def test_the_driver_is_not_asked_for_more_than_the_host_may_take(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    ranks = PretendedRanks(tmp_path, helper(tmp_path / "s", lambda told: asked.append(told) or {"pids": []}))
    memory = MovedMemory(ranks)
    wish(ranks, memory="out", most_bytes=10, held_bytes=11)
    memory.look()
    run(memory, "gpu")
    assert where(ranks)["problem"] == "its memory is more than the host may take"
    assert not asked


@pytest.mark.parametrize("text", ["", "[]", "{", '{"memory": 5}', "\x00", '{"memory": "out", "most_bytes": "x"}'])
def test_a_wish_that_makes_no_sense_does_nothing(tmp_path: Path, text: str) -> None:
    ranks = PretendedRanks(tmp_path)
    (tmp_path / "memory").write_text(text)
    memory = MovedMemory(ranks)
    memory.look()
    assert memory.place in ("gpu", "leaving")
    run(memory, "gpu")
    assert not ranks.problem


def test_a_pipe_in_the_place_of_an_answer_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "memory")
    memory = MovedMemory(PretendedRanks(tmp_path))
    memory.look()
    assert memory.place == "gpu"


def test_a_helper_that_is_not_there_is_told(tmp_path: Path) -> None:
    call = DriverCall(str(tmp_path / "none"), "out", [1], 1.0)
    assert "No such file" in (call.reply(time.monotonic()) or {})["problem"]
    assert not call.hangs


def test_a_helper_that_ends_in_the_middle_is_told(tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    listening.listen()
    call = DriverCall(str(tmp_path / "s"), "out", [1], 1.0)
    listening.accept()[0].close()
    told = wait_for(lambda: call.reply(time.monotonic()), "a reply")
    assert told is not None
    assert told["problem"]


def test_all_sides_know_the_same_signal() -> None:
    assert moves.REQUEST == mover.REQUEST == seat.REQUEST
