"""Ranks agree on the step after which they stop, whoever hears of it first."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_cases import environment, reports

from fairway.train import session
from fairway.train.ranks import FileAgreement

RANKS, STEPS = 3, 12


@given(st.data())
def test_ranks_that_wait_for_one_another_stop_after_the_same_step(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Every rank needs something from every other one in a step, so it can be one step ahead at most."""
    folder = tmp_path_factory.mktemp("attempt")
    ranks = [FileAgreement(folder) for _ in range(RANKS)]
    asked_after = [data.draw(st.integers(1, STEPS)) for _ in range(RANKS)]
    trained, last = [0] * RANKS, [0] * RANKS
    while not all(last):
        # A rank can end its next step if all others have begun that step, and so have ended the one before.
        able = [rank for rank in range(RANKS) if not last[rank] and trained[rank] <= min(trained)]
        rank = data.draw(st.sampled_from(able))
        trained[rank] += 1
        if ranks[rank].stops(trained[rank] >= asked_after[rank]):
            last[rank] = trained[rank]
    assert len(set(last)) == 1
    assert min(asked_after) <= last[0] <= min(asked_after) + 1


def test_ranks_that_train_without_one_another_stop_as_soon_as_they_see_it(tmp_path: Path) -> None:
    slow, fast = FileAgreement(tmp_path), FileAgreement(tmp_path)
    assert not any(fast.stops(False) for _ in range(10))
    assert not slow.stops(True)
    assert fast.stops(False)
    assert slow.stops(False)
    assert not list(tmp_path.glob("stop.*"))


def test_ranks_need_not_ask_one_another_after_every_step(tmp_path: Path) -> None:
    with session(agree_every=4, env=environment(tmp_path, world=2)) as training:
        os.kill(os.getpid(), signal.SIGTERM)
        assert [training.should_stop() for _ in range(8)] == [False] * 7 + [True]


def test_a_rank_that_is_told_to_stop_makes_another_step_before_it_saves(tmp_path: Path) -> None:
    with session(steps=9, env=environment(tmp_path, world=2)) as training:
        steps = training.steps(lambda path: path.write_text("."), lambda path: None)
        next(steps)
        os.kill(os.getpid(), signal.SIGTERM)
        assert next(steps) == 1
        assert training.resume() is None
        with pytest.raises(SystemExit):
            next(steps)
        assert training.checkpoint is not None
        assert training.checkpoint.step == 2


def test_ranks_cannot_agree_every_zero_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every 0"):
        session(agree_every=0, env=environment(tmp_path))


def test_where_nothing_can_be_written_a_rank_stops_by_itself(tmp_path: Path) -> None:
    for agreement in (FileAgreement(None), FileAgreement(tmp_path / "gone")):
        assert not agreement.stops(False)
        assert agreement.stops(True)


@pytest.mark.filterwarnings("ignore:.*main thread:RuntimeWarning")
def test_all_ranks_save_together(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        training = session(env=environment(tmp_path, rank=rank, world=RANKS))
        training.save(5, lambda path: (path / f"rank-{rank}").write_text(str(rank)), everyone=True)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (told,) = [line for line in reports(tmp_path) if "checkpoint" in line]
    assert sorted(path.name for path in Path(told["checkpoint"]).iterdir()) == [f"rank-{k}" for k in range(RANKS)]


def test_a_checkpoint_in_which_a_rank_is_missing_does_not_count(tmp_path: Path) -> None:
    env = environment(tmp_path, world=2) | {"FAIRWAY_GRACE_SECONDS": "0.05"}
    with session(env=env) as training, pytest.warns(UserWarning, match="does not count"):
        training.save(5, lambda path: (path / "rank-0").write_text("."), everyone=True)
    assert training.resume() is None
    assert not [line for line in reports(tmp_path) if "checkpoint" in line]


def test_the_scheduler_may_want_a_batch_size(tmp_path: Path) -> None:
    with session(env=environment(tmp_path)) as training:
        assert training.wanted_batch() is None
    with session(env=environment(tmp_path) | {"FAIRWAY_BATCH_SIZE": "64"}) as training:
        assert training.wanted_batch() == 64
        wishes = [({"local": 32, "accumulation": 1, "gpus": 2}, 128), ({"local": "x"}, 64), ([], 64)]
        wishes += [({"local": -1, "accumulation": 0, "gpus": 1}, 64), ({"local": 8, "accumulation": 0, "gpus": 0}, 64)]
        for told, wanted in wishes:
            (tmp_path / "attempt-1" / "wanted.json").write_text(json.dumps(told))
            assert training.wanted_batch() == wanted


@pytest.mark.parametrize(("batch", "world"), [(64, 1), (64, 3), (5, 8), (7, 7)])
def test_the_global_batch_is_shared_out_whole(tmp_path: Path, batch: int, world: int) -> None:
    parts = []
    for rank in range(world):
        with session(env=environment(tmp_path, rank=rank, world=world)) as training:
            parts.append(training.local_batch(batch))
    assert sum(parts) == batch
    assert max(parts) - min(parts) <= 1
