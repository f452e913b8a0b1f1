"""What a keeper decides, without processes: how long ranks have to stop, what signals mean, what counts as run time."""

from __future__ import annotations

import json
import math
import signal
import time
from pathlib import Path

import pytest

from fairway.runtime.processes.keeper import HURRY_S, Keeper, read_own, write_new
from fairway.runtime.processes.ranks import CHECKPOINTED
from fairway.runtime.processes.siblings import Siblings
from fairway.train.stopping import REQUEUE_CODE

GRACE_S = 60.0
SOON_S = 10.0
"""How long ranks have to stop when another one of their gang has failed."""
FIRST, SECOND = 1_000_000_001, 1_000_000_002
"""Ranks, by process ids that do not exist."""


class Told(Keeper):
    """A keeper of two ranks that are not there. It notes what it would tell them."""

    def __init__(self, directory: Path, *, limit_s: float | None = None) -> None:
        launch = {"ranks": [], "cwd": "/", "grace_s": GRACE_S, "limit_s": limit_s, "log_bytes": 1000}
        write_new(directory / "launch.json", launch)
        super().__init__(directory)
        self.signals: list[int] = []
        self.ranks = {FIRST: 0, SECOND: 1}

    def signal_all(self, signo: int) -> None:
        assert signo != signal.SIGTERM or (self.directory / "stopping").exists(), "the file comes first"
        self.signals.append(signo)

    def processes(self) -> list[int]:
        return []

    def has_s(self) -> float:
        """How long its ranks have until they are killed."""
        return self.kill_at_s - time.monotonic()


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_one_exit_code_says_that_the_state_is_saved() -> None:
    """Programs in other languages exit with 75, too, so it may not change."""
    assert CHECKPOINTED == REQUEUE_CODE == 75


@pytest.mark.parametrize(
    ("code", "has_s"), [(75, GRACE_S), (76, SOON_S), (74, SOON_S), (1, SOON_S), (143, SOON_S), (0, math.inf)]
)
def test_ranks_have_their_grace_period_only_if_the_one_that_has_ended_saved_its_state(
    told: Told, code: int, has_s: float
) -> None:
    told.codes = {FIRST: code}
    told._look_after(time.monotonic())
    assert told.cause == ("gang" if code else "")
    assert told.has_s() == pytest.approx(has_s, abs=5.0)


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_request_to_stop_gives_the_grace_period_and_wakes_ranks_only_after_they_were_asked(
    told: Told, signo: int
) -> None:
    told._handle(signo)
    assert told.cause == "request"
    assert told.has_s() == pytest.approx(GRACE_S, abs=5.0)
    assert told.signals == [signal.SIGTERM, signal.SIGCONT]
    told._handle(signal.SIGTERM)
    assert told.signals == [signal.SIGTERM, signal.SIGCONT], "the first request counts"


def test_suspended_ranks_whose_state_is_not_needed_have_less(told: Told) -> None:
    told._handle(signal.SIGUSR1)
    write_new(told.directory / "hurry", 2.5)
    told._handle(signal.SIGTERM)
    assert told.has_s() == pytest.approx(2.5, abs=2.0)


def test_one_signal_suspends_and_the_other_one_resumes(told: Told) -> None:
    told._handle(signal.SIGUSR1)
    assert (told.stopped, told.signals) == (True, [signal.SIGSTOP])
    told._handle(signal.SIGUSR2)
    assert (told.stopped, told.signals) == (False, [signal.SIGSTOP, signal.SIGCONT])


@pytest.mark.parametrize(("wanted", "stopped"), [("yes", True), ("no", False)])
@pytest.mark.parametrize("signo", [signal.SIGUSR1, signal.SIGUSR2])
def test_the_file_says_what_was_wanted_last_whatever_the_signal(
    told: Told, wanted: str, stopped: bool, signo: int
) -> None:
    (told.directory / "paused").touch(mode=0o600)
    (told.directory / "paused").write_text(wanted)
    told._handle(signo)
    assert told.stopped is stopped


def test_ranks_that_are_stopping_hurry_if_their_gpus_are_wanted(told: Told) -> None:
    told._handle(signal.SIGTERM)
    told._handle(signal.SIGUSR1)
    assert told.has_s() <= HURRY_S
    assert not told.stopped


def test_a_time_limit_counts_run_time_and_not_the_time_of_suspension(tmp_path: Path) -> None:
    told = Told(tmp_path, limit_s=100.0)
    told._count(99.0)
    told._handle(signal.SIGUSR1)
    told._count(1000.0)
    told._handle(signal.SIGUSR2)
    told._look_after(time.monotonic())
    assert (told.ran_s, told.cause) == (99.0, "")
    told._count(1.0)
    told._look_after(time.monotonic())
    assert (told.cause, told.signals[-2:]) == ("limit", [signal.SIGTERM, signal.SIGCONT])
    assert told.has_s() == pytest.approx(GRACE_S, abs=5.0)


@pytest.mark.parametrize(
    ("codes", "cause", "soon"),
    [
        ([1], "", True),
        ([75, 1], "", True),
        ([75], "", False),
        ([75, 0], "", False),
        ([76], "", True),
        ([143], "request", False),
        ([143], "limit", False),
        ([], "limit", False),
        ([], "start", True),
        ([75], "start", True),
        ([0], "", None),
        ([], "", None),
    ],
)
def test_a_part_tells_the_others_whether_they_have_time(
    tmp_path: Path, codes: list[int], cause: str, soon: bool | None
) -> None:
    ours, others = (Siblings(tmp_path / f"node-{part}", {"of_parts": 2}, write_new) for part in (0, 1))
    ours.tell(codes, cause)
    ours.tell([1], "")
    assert others.ending(read_own) is (True if soon is None else soon)
    assert json.loads((tmp_path / "ending").read_text()) == {"soon": True if soon is None else soon}
