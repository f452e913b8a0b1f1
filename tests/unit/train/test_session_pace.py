"""Sessions that share a GPU: they rest between steps for as long as the throttle asks for, and say so."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
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


class Clock:
    """The time of a training, which passes when it computes or rests."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._due: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        due = [act for at_s, act in self._due if at_s <= self.now_s]
        self._due = [(at_s, act) for at_s, act in self._due if at_s > self.now_s]
        for act in due:
            act()

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Let something happen later."""
        self._due.append((self.now_s + seconds, act))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


def part_of(training: Session, seconds: float, step_s: float = 0.02) -> tuple[float, int]:
    """What part of the time a training computes, and how many steps it makes."""
    made, clock = 0, pace.time
    began_s = clock.monotonic()
    for _ in training.steps():
        clock.sleep(step_s)
        made += 1
        if clock.monotonic() > began_s + seconds:
            break
    return made * step_s / (clock.monotonic() - began_s), made


def test_a_session_that_is_not_throttled_never_rests(attempt: Path) -> None:
    with begin(attempt) as training:
        assert part_of(training, 0.5)[0] == pytest.approx(1.0)
    assert not (attempt / "eased-0").exists()


def test_a_throttled_session_computes_for_its_part_of_the_time_and_says_so(attempt: Path) -> None:
    (attempt / "throttle").write_text("0.25")
    with begin(attempt) as training:
        part, steps = part_of(training, 30.0)
    assert part == pytest.approx(0.25, abs=0.01)
    assert steps > 300
    assert (attempt / "eased-0").exists()


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


def test_a_request_to_stop_ends_a_long_rest(attempt: Path, clock: Clock) -> None:
    (attempt / "throttle").write_text("0.0001")
    with begin(attempt) as training:
        clock.after(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        began_s = clock.now_s
        with pytest.raises(SystemExit):
            part_of(training, 1000.0)
        assert clock.now_s - began_s < 0.5


def test_a_throttle_that_is_taken_back_ends_a_long_rest(attempt: Path, clock: Clock) -> None:
    (attempt / "throttle").write_text("0.0001")
    with begin(attempt) as training:
        clock.after(0.3, lambda: (attempt / "throttle").write_text("1.0"))
        assert part_of(training, 1.0)[1] > 20


def test_the_word_stays_fresh_through_a_long_rest(attempt: Path, clock: Clock) -> None:
    (attempt / "throttle").write_text("0.001")
    with begin(attempt) as training:
        for _ in training.steps():
            if (attempt / "eased-0").exists():
                break
            clock.sleep(0.01)
        os.utime(attempt / "eased-0", (1.0, 1.0))
        clock.after(1.5, lambda: (attempt / "throttle").write_text("1.0"))
        clock.sleep(0.01)
        training._pace.rest()
    assert (attempt / "eased-0").stat().st_mtime > 1.0


def test_long_steps_are_left_to_the_scheduler_until_they_are_shorter(attempt: Path, clock: Clock) -> None:
    (attempt / "throttle").write_text("0.1")
    with begin(attempt) as training:
        assert part_of(training, 10.0, step_s=2.0)[0] == pytest.approx(1.0)
        assert not (attempt / "eased-0").exists()
        clock.sleep(pace.RETRY_S)
        assert part_of(training, 30.0, step_s=0.01)[0] == pytest.approx(0.1, abs=0.02)
        assert (attempt / "eased-0").exists()


@pytest.mark.parametrize("word", ["", "x", "0", "-3", "nan", "inf", "2"])
def test_a_throttle_that_makes_no_sense_is_none(attempt: Path, word: str) -> None:
    (attempt / "throttle").write_text(word)
    with begin(attempt) as training:
        assert part_of(training, 0.2)[0] == pytest.approx(1.0)


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


def test_the_throttle_is_read_a_few_times_per_second_however_short_the_steps_are(
    attempt: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, reads, read = pace.Pace(attempt, 0, lambda: False), list[Path](), Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, **about: (reads.append(path), read(path, **about))[1])
    for _ in range(10_000):
        training.rest()
        clock.sleep(0.0001)
    assert 3 <= len(reads) <= 5
