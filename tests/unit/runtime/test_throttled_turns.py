"""How long a keeper lets throttled ranks compute, in simulated time: as long as their part says, even if it is late."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairway.runtime.processes import keeper
from fairway.runtime.processes.keeper import Keeper, Turns

LONG_S = 60.0


class PretendedKeeper:
    """A keeper with one rank that computes whenever it is not stopped."""

    def __init__(self, directory: Path, part: float) -> None:
        self.directory = directory
        self.now_s, self.computed_s = 1000.0, 0.0
        self.stopped, self.cause = False, ""
        self.ranks, self.codes = {7: 0}, dict[int, int]()
        self.computes = True
        self.stops = 0
        self.throttle(part)

    def throttle(self, part: float) -> None:
        path = self.directory / "throttle"
        path.write_text(json.dumps(part))
        path.chmod(0o600)

    def processes(self) -> list[int]:
        return []

    def rank_folder(self) -> Path:
        return self.directory

    def signal_groups(self, signo: int) -> None:
        self.computes = signo == signal.SIGCONT
        self.stops += signo == signal.SIGSTOP

    def let_pass(self, seconds: float) -> None:
        """Time passes. The rank uses it if it is not stopped."""
        self.now_s += seconds
        self.computed_s += seconds if self.computes else 0.0

    def ease(self, rank: int = 0) -> None:
        """A rank says that it keeps to the throttle by itself."""
        path = self.directory / f"eased-{rank}"
        path.touch()
        os.utime(path, (self.now_s, self.now_s))


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(part: float) -> tuple[PretendedKeeper, Turns]:
        pretended = PretendedKeeper(tmp_path, part)
        clock = SimpleNamespace(monotonic=lambda: pretended.now_s, time=lambda: pretended.now_s)
        monkeypatch.setattr(keeper, "time", clock)
        return pretended, Turns(cast(Keeper, pretended))

    return make


def part_of(pretended: PretendedKeeper, turns: Turns, most_late_s: float = 0.0) -> float:
    """What part of a long time the rank computes, if the keeper may be late."""
    dice, begun_s, computed_s = random.Random(1), pretended.now_s, pretended.computed_s
    while pretended.now_s < begun_s + LONG_S:
        pretended.let_pass(max(min(turns.next_s - pretended.now_s, 1.0), 0.0) + dice.uniform(0.0, most_late_s))
        turns.take(pretended.now_s)
    return (pretended.computed_s - computed_s) / (pretended.now_s - begun_s)


@pytest.mark.parametrize("part", [0.02, 0.05, 0.1, 0.3, 0.5, 0.8, 0.98])
def test_ranks_compute_for_their_part_of_the_time(made: Any, part: float) -> None:
    assert part_of(*made(part)) == pytest.approx(part, abs=0.02)


@pytest.mark.parametrize("part", [0.05, 0.3, 0.8])
def test_turns_that_end_late_are_followed_by_longer_rests(made: Any, part: float) -> None:
    assert part_of(*made(part), most_late_s=0.03) == pytest.approx(part, abs=0.1)


def test_a_part_of_1_is_all_of_the_time_and_another_part_counts_at_once(made: Any) -> None:
    pretended, turns = made(1.0)
    assert (part_of(pretended, turns), pretended.stops) == (1.0, 0)
    for part in (0.5, 0.1, 1.0):
        pretended.throttle(part)
        turns.look()
        assert part_of(pretended, turns) == pytest.approx(part, abs=0.02)
    assert pretended.computes


def test_ranks_that_keep_to_the_throttle_themselves_are_left_alone_as_long_as_they_say_so(made: Any) -> None:
    pretended, turns = made(0.05)
    for _ in range(300):
        pretended.ease()
        pretended.let_pass(1.0)
        turns.take(pretended.now_s)
    assert pretended.stops == 0
    pretended.let_pass(keeper._EASED_S)
    assert part_of(pretended, turns) == pytest.approx(0.05, abs=0.02)


def test_one_rank_that_says_nothing_is_enough_for_the_keeper_to_do_it(made: Any) -> None:
    pretended, turns = made(0.05)
    pretended.ranks[8] = 1
    for _ in range(300):
        pretended.ease()
        pretended.let_pass(1.0)
        turns.take(pretended.now_s)
    assert pretended.stops > 0


def test_suspended_ranks_take_no_turns(made: Any) -> None:
    pretended, turns = made(0.5)
    pretended.stopped = True
    turns.begin()
    assert turns.next_s == float("inf")
    pretended.stopped = False
    turns.begin()
    assert part_of(pretended, turns) == pytest.approx(0.5, abs=0.02)
