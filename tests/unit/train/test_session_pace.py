"""Sessions that share a GPU: they rest between steps for as long as the throttle asks for, and say so."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from session_cases import environment

from fairway.train import Session, pace, session


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """The directory in which the scheduler leaves word of a throttle."""
    environment(tmp_path)
    return tmp_path / "attempt-1"


def begin(attempt: Path, rank: int = 0, world: int = 1, **more: str) -> Session:
    """A session that looks at its throttle at once."""
    made = session(100_000, env=environment(attempt.parent, rank=rank, world=world) | more)
    made._pace._looked_s = -1e9
    return made


def part_of(training: Session, seconds: float, step_s: float = 0.02) -> tuple[float, int]:
    """What part of the time a training computes, and how many steps it makes."""
    computed_s, made, began_s = 0.0, 0, time.monotonic()
    for _ in training.steps():
        before_s = time.monotonic()
        time.sleep(step_s)
        computed_s, made = computed_s + time.monotonic() - before_s, made + 1
        if time.monotonic() > began_s + seconds:
            break
    return computed_s / (time.monotonic() - began_s), made


def test_a_session_that_is_not_throttled_never_rests(attempt: Path) -> None:
    with begin(attempt) as training:
        assert part_of(training, 0.5)[0] > 0.6
    assert not (attempt / "eased-0").exists()


def test_a_throttled_session_computes_for_its_part_of_the_time_and_says_so(attempt: Path) -> None:
    (attempt / "throttle").write_text("0.25")
    with begin(attempt) as training:
        part, steps = part_of(training, 1.5)
    assert 0.1 < part < 0.45
    assert steps > 3
    assert abs((attempt / "eased-0").stat().st_mtime - time.time()) < 5.0


def test_each_rank_says_it_where_all_ranks_can_write(attempt: Path) -> None:
    (attempt / "throttle").write_text("0.5")
    (attempt / "shared").mkdir()
    with begin(attempt, rank=1, world=2) as training:
        part_of(training, 0.3)
    assert (attempt / "shared" / "eased-1").exists()


def test_a_rank_on_one_of_several_nodes_talks_to_the_keeper_of_its_node(attempt: Path) -> None:
    node = attempt / "node-1"
    node.mkdir()
    (node / "throttle").write_text("0.5")
    with begin(attempt, rank=5, world=6, FAIRWAY_LOCAL_RANK="1", FAIRWAY_NODE_DIR=str(node)) as training:
        part_of(training, 0.3)
        assert training.context.attempt == attempt
    assert (node / "eased-1").exists()
    assert not list(attempt.glob("eased-*"))


def test_a_request_to_stop_ends_a_long_rest(attempt: Path) -> None:
    (attempt / "throttle").write_text("0.0001")
    with begin(attempt) as training:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        began_s = time.monotonic()
        with pytest.raises(SystemExit):
            part_of(training, 60.0)
        assert time.monotonic() - began_s < 20.0


def test_a_throttle_that_is_taken_back_ends_a_long_rest(attempt: Path) -> None:
    (attempt / "throttle").write_text("0.0001")
    with begin(attempt) as training:
        threading.Timer(0.3, (attempt / "throttle").write_text, ("1.0",)).start()
        began_s = time.monotonic()
        assert part_of(training, 1.0)[1] > 3
        assert time.monotonic() - began_s < 20.0


def test_the_word_stays_fresh_through_a_long_rest(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_SAY_EVERY_S", 0.05)
    (attempt / "throttle").write_text("0.001")
    with begin(attempt) as training:
        for _ in training.steps():
            if (attempt / "eased-0").exists():
                break
            time.sleep(0.01)
        os.utime(attempt / "eased-0", (1.0, 1.0))
        threading.Timer(0.7, (attempt / "throttle").write_text, ("1.0",)).start()
        time.sleep(0.01)
        training._pace.rest()
    assert (attempt / "eased-0").stat().st_mtime > 1.0


def test_long_steps_are_left_to_the_scheduler_until_they_are_shorter(
    attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "LONGEST_STEP_S", 0.1)
    monkeypatch.setattr(pace, "RETRY_S", 0.5)
    (attempt / "throttle").write_text("0.1")
    with begin(attempt) as training:
        assert part_of(training, 0.45, step_s=0.2)[0] > 0.7
        assert not (attempt / "eased-0").exists()
        time.sleep(0.6)
        assert part_of(training, 1.0, step_s=0.01)[0] < 0.5
        assert (attempt / "eased-0").exists()


@pytest.mark.parametrize("word", ["", "x", "0", "-3", "nan", "inf", "2"])
def test_a_throttle_that_makes_no_sense_is_none(attempt: Path, word: str) -> None:
    (attempt / "throttle").write_text(word)
    with begin(attempt) as training:
        assert part_of(training, 0.2)[0] > 0.5


def test_a_gpu_has_done_its_work_before_the_rest(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cuda:
        waited = 0

        @staticmethod
        def is_initialized() -> bool:
            return True

        @classmethod
        def synchronize(cls) -> None:
            cls.waited += 1

    class Torch:
        cuda = Cuda

    monkeypatch.setitem(pace.sys.modules, "torch", Torch)
    training = pace.Pace(attempt, 0, lambda: False)
    training.rest()
    assert Cuda.waited == 0
    (attempt / "throttle").write_text("0.9")
    training._looked_s = -1e9
    training.rest()
    assert Cuda.waited == 1


def test_asking_costs_next_to_nothing_without_a_throttle(attempt: Path) -> None:
    training = pace.Pace(attempt, 0, lambda: False)
    began_s = time.perf_counter()
    for _ in range(10_000):
        training.rest()
    assert time.perf_counter() - began_s < 5.0
