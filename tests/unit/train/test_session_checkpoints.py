"""Checkpoints: whole or not there, counted when reported, found again by the next attempt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from session_cases import Attempts, environment, reports

from fairway.train import session
from fairway.train.checkpoints import Checkpoints


def listed(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").iterdir()}


def test_a_checkpoint_counts_when_it_is_reported(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    with attempts.begin(steps=10) as training:
        assert training.resume() is None
        training.save(4, lambda path: path.write_text("four"))
        told = reports(tmp_path)[-1]
    assert told["step"] == 4
    assert Path(told["checkpoint"]).read_text() == "four"
    assert told["save_s"] > 0
    with attempts.begin(steps=10) as training:
        path = training.resume()
        assert path is not None
        assert path.read_text() == "four"
        assert training.checkpoint is not None
        assert training.checkpoint.step == 4


def test_a_checkpoint_of_which_the_scheduler_does_not_know_is_not_taken(tmp_path: Path) -> None:
    with session(env=environment(tmp_path)) as training:
        training.save(4, lambda path: path.write_text("four"))
    with session(env=environment(tmp_path, restart=1, resume=False)) as training:
        assert training.resume() is None
        training.save(1, lambda path: path.write_text("one"))
    with session(env=environment(tmp_path, restart=2, resume=True)) as training:
        found = training.checkpoint
        assert found is not None
        assert (found.step, found.path.read_text()) == (1, "one")


def test_a_script_may_write_by_itself(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    elsewhere = tmp_path / "mine.bin"
    with attempts.begin() as training:
        path = training.checkpoint_path(7)
        assert path is not None
        path.write_text("seven")
        training.saved(path, 7)
        for step in (8, 9, 10):
            elsewhere.write_text(str(step))
            training.saved(elsewhere, step)
    with attempts.begin() as training:
        assert training.resume() == elsewhere
    assert listed(tmp_path) == {"checkpoints.json", "step-7-attempt-1"}


def test_saving_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with session(env=environment(tmp_path)) as training:
        with pytest.raises(FileNotFoundError):
            training.saved(tmp_path / "nothing", 1)
        with pytest.raises(FileNotFoundError, match="nothing is there"):
            training.save(1, lambda path: None)
        assert training.resume() is None


def test_a_save_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with session(env=environment(tmp_path)) as training:
        training.save(1, lambda path: path.write_text("one"))
        with pytest.raises(OSError, match="No space"):
            training.save(2, fail)
        found = training.checkpoint
        assert found is not None
        assert found.path.read_text() == "one"
    assert listed(tmp_path) == {"checkpoints.json", "step-1-attempt-1"}


def test_what_a_killed_attempt_did_not_finish_is_removed(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    with attempts.begin() as training:
        training.save(1, lambda path: path.write_text("one"))
    (tmp_path / "checkpoints" / "step-2-attempt-1.part").mkdir()
    (tmp_path / "checkpoints" / "step-2-attempt-1.part" / "rank-0").write_text("half")
    with attempts.begin() as training:
        assert listed(tmp_path) == {"checkpoints.json", "step-1-attempt-1"}
        assert training.resume() is not None


def test_old_checkpoints_go_and_the_newest_that_is_there_is_taken(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    with attempts.begin(keep=2) as training:
        for step in range(1, 6):
            training.save(step, lambda path: path.write_text("."))
    assert listed(tmp_path) == {"checkpoints.json", "step-4-attempt-1", "step-5-attempt-1"}
    (tmp_path / "checkpoints" / "step-5-attempt-1").unlink()
    with attempts.begin() as training:
        assert training.checkpoint is not None
        assert training.checkpoint.step == 4


def test_the_list_may_be_moved_and_may_be_broken(tmp_path: Path) -> None:
    with session(env=environment(tmp_path / "a")) as training:
        training.save(3, lambda path: path.mkdir())
    shutil.move(tmp_path / "a", tmp_path / "b")
    found = Checkpoints(tmp_path / "b" / "checkpoints").latest()
    assert found is not None
    assert found.path == tmp_path / "b" / "checkpoints" / "step-3-attempt-1"
    for text in ("", "{", "[1]", '[{"path": "x"}]', "{}"):
        (tmp_path / "b" / "checkpoints" / "checkpoints.json").write_text(text)
        assert Checkpoints(tmp_path / "b" / "checkpoints").latest() is None


def test_the_same_step_is_not_saved_twice(tmp_path: Path) -> None:
    saved: list[Path] = []

    def save(path: Path) -> None:
        saved.append(path)
        path.write_text(".")

    with session(env=environment(tmp_path)) as training:
        training.save(3, save)
        training.save(3, save)
    assert len(saved) == 1


def test_only_the_first_rank_saves(tmp_path: Path) -> None:
    with session(env=environment(tmp_path, rank=1, world=2)) as training:
        training.save(3, lambda path: path.write_text("."))
        training.saved(tmp_path / "nothing", 3)
    assert listed(tmp_path) == set()


def test_a_slow_save_is_told_once_the_grace_period_is_shorter(tmp_path: Path) -> None:
    env = environment(tmp_path) | {"FAIRWAY_GRACE_SECONDS": "0"}
    with session(env=env) as training, pytest.warns(UserWarning, match="saving took"):
        training.save(1, lambda path: path.write_text("."))


def test_outside_fairway_a_folder_may_be_given(tmp_path: Path) -> None:
    for start in (0, 3):
        training = session(steps=6, checkpoint_dir=tmp_path / "mine", env={})
        seen = []
        for step in training.steps(lambda path: path.write_text("."), lambda path: path.read_text(), every=3):
            seen.append(step)
            if step == 4 and not start:
                break
        assert seen[0] == start
