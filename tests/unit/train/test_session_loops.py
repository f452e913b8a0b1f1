"""Loops: a training that is stopped anywhere, any number of times, makes each step once and ends as if it never was."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_cases import Attempts, Counter, environment, reports

from fairway.train import Session, session, shield_worker

STEPS = 12


def stop_me() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def left_with(training: Session, counter: Counter, stop: int | None, **about: Any) -> int | None:
    """Train until the end (None) or until the session leaves, being told to stop in a step; the exit code."""
    try:
        for step in training.steps(counter.save, counter.load, **about):
            counter.trained.append(step)
            if step == stop:
                stop_me()
    except SystemExit as left:
        return int(str(left.code))
    return None


def test_a_training_that_is_stopped_saves_and_asks_to_be_run_again(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    codes = []
    for stop in (3, 7, 8, None):
        counter = Counter()
        with attempts.begin(steps=STEPS) as training:
            codes.append(left_with(training, counter, stop))
    assert codes == [75, 75, 75, None]
    assert counter.trained == list(range(STEPS))
    assert [line["step"] for line in reports(tmp_path) if "checkpoint" in line] == [4, 8, 9]


def test_stopping_in_the_last_step_changes_nothing(tmp_path: Path) -> None:
    counter = Counter()
    with session(steps=3, env=environment(tmp_path)) as training:
        for step in training.steps(counter.save, counter.load):
            counter.trained.append(step)
            if step == 2:
                stop_me()
    assert counter.trained == [0, 1, 2]
    assert reports(tmp_path)[-1]["step"] == 3


@given(st.data())
def test_no_step_is_lost_or_made_twice(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Where attempts are also killed without warning, exactly what came after the last checkpoint is made again."""
    attempts = Attempts(tmp_path_factory.mktemp("job"))
    every = data.draw(st.integers(1, 5))
    for _ in range(20):
        counter = Counter()
        stop, kill = data.draw(st.integers(0, STEPS)), data.draw(st.integers(0, STEPS))
        with attempts.begin(steps=STEPS) as training:
            try:
                for step in training.steps(counter.save, counter.load, every=every):
                    if step == kill:
                        raise KeyboardInterrupt
                    counter.trained.append(step)
                    assert counter.trained == list(range(step + 1))
                    if step == stop:
                        stop_me()
                break
            except (SystemExit, KeyboardInterrupt):
                continue
    told = [line["step"] for line in reports(attempts.folder) if "checkpoint" in line]
    assert told == sorted(told)
    assert all(step % every == 0 or step <= STEPS for step in told)


def test_a_loop_reports_by_itself(tmp_path: Path) -> None:
    with session(steps=4, batch_size=2, env=environment(tmp_path)) as training:
        for _ in training.steps():
            pass
    told = reports(tmp_path)
    assert (told[1]["step"], told[1]["samples"]) == (1, 2)
    assert (told[-1]["step"], told[-1]["samples"]) == (4, 8)


def test_a_loop_knows_the_step_of_a_report(tmp_path: Path) -> None:
    with session(steps=2, env=environment(tmp_path)) as training:
        for step in training.steps():
            training.report(loss=float(step))
    assert [(line["step"], line["loss"]) for line in reports(tmp_path)[1:]] == [(1, 0.0), (2, 1.0)]


def test_samples_are_counted_on_after_a_restart(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    for stop in (4, None):
        with attempts.begin(steps=10, batch_size=8) as training:
            left_with(training, Counter(), stop)
    assert reports(tmp_path)[-1]["samples"] == 80


def test_a_training_without_an_end_goes_on_until_it_is_left(tmp_path: Path) -> None:
    with session(env=environment(tmp_path)) as training:
        for step in training.steps(start=5):
            if step == 50:
                break
    assert step == 50


def test_a_training_that_cannot_save_leaves_at_once(tmp_path: Path) -> None:
    with session(steps=9, env=environment(tmp_path)) as training:
        steps = training.steps()
        assert [next(steps), next(steps)] == [0, 1]
        stop_me()
        with pytest.raises(SystemExit, match="75"):
            next(steps)


def test_a_full_disk_costs_the_checkpoint_and_not_the_training(tmp_path: Path) -> None:
    counter = Counter()

    def save(path: Path) -> None:
        if len(counter.trained) == 4:
            raise OSError(28, "No space left on device")
        counter.save(path)

    with session(steps=8, env=environment(tmp_path)) as training:
        steps = training.steps(save, counter.load, every=2)
        counter.trained += [next(steps) for _ in range(4)]
        with pytest.warns(RuntimeWarning, match="step 4 could not"):
            counter.trained.append(next(steps))
        counter.trained += list(steps)
    assert [line["step"] for line in reports(tmp_path) if "checkpoint" in line] == [2, 6]


def test_it_is_saved_by_the_clock(tmp_path: Path) -> None:
    counter = Counter()
    with session(steps=10_000_000, env=environment(tmp_path)) as training:
        for _ in training.steps(counter.save, counter.load, every_s=0.05):
            if any("checkpoint" in line for line in reports(tmp_path)):
                return
    pytest.fail("it was never saved")


@pytest.mark.parametrize("about", [{"every": 0}, {"every_s": 0.0}])
def test_nonsense_about_saving_is_refused(tmp_path: Path, about: dict[str, int]) -> None:
    with session(steps=2, env=environment(tmp_path)) as training, pytest.raises(ValueError, match="every"):
        list(training.steps(**about))  # type: ignore[arg-type]


def test_two_sessions_hear_the_same_signal(tmp_path: Path) -> None:
    with session(env=environment(tmp_path / "a")) as first, session(env=environment(tmp_path / "b")) as second:
        stop_me()
        assert first.should_stop()
        assert second.should_stop()
        assert second.should_stop()


def test_signals_are_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with session(env=environment(tmp_path)):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_session_of_another_thread_says_that_it_cannot_be_stopped(tmp_path: Path) -> None:
    seen: list[warnings.WarningMessage] = []

    def work() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session(env=environment(tmp_path)).close()
        seen.extend(caught)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ["main thread" in str(warning.message) for warning in seen] == [True]


def test_a_shielded_worker_ends_when_its_parent_says_so_and_not_before() -> None:
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        shield_worker(0)
        os.write(tell, b".")
        time.sleep(60)
        os._exit(1)
    assert os.read(ready, 1) == b"."
    subprocess.run(["sh", "-c", f"kill -TERM {child}"], check=True)
    time.sleep(0.2)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("FAIRWAY_RANK", "x"), ("FAIRWAY_WORLD_SIZE", "-3"), ("FAIRWAY_WORLD_SIZE", "0"), ("FAIRWAY_RANK", "9")),
        *(("RANK", "5"), ("WORLD_SIZE", "4"), ("FAIRWAY_GRACE_SECONDS", "soon")),
    ],
)
def test_an_environment_that_makes_no_sense_is_no_error(tmp_path: Path, name: str, value: str) -> None:
    with session(env=environment(tmp_path) | {name: value}) as training:
        assert (training.rank, training.world_size) == (0, 1)
        assert training.grace_s in (5.0, 60.0)


def test_a_launcher_in_the_job_says_which_rank_a_process_is(tmp_path: Path) -> None:
    inside = {"RANK": "2", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    with session(env=environment(tmp_path) | inside) as training:
        assert (training.rank, training.world_size) == (2, 4)
