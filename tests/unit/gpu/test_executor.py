"""An executor and its jobs, on the CPU: they run, wait, stand still, leave and fail, each by itself."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from executor_process import FakeSeat, executor, leave_word

from fairway.gpu.safeguards import MOST_CRASHES, STUCK
from fairway.gpu.seat import Seat
from fairway.testing.waiting import WAIT_S, at_rest, wait_for
from fairway.train.context import Context


def _attempt(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


def test_a_job_runs_to_its_end(tmp_path: Path) -> None:
    with executor(tmp_path):
        seat = FakeSeat(tmp_path).host("1", "counting", "5")
        assert seat.until("hosted") == {"step": 0, "steps": 5}
        assert seat.until("done") == 5


def test_jobs_take_turns(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with executor(tmp_path, bytes="1000000"):
        seats = [FakeSeat(tmp_path).host(str(n), "sized", "1", "900000", "20", "0.01", str(note)) for n in range(2)]
        assert [seat.until("done") for seat in seats] == [20, 20]
    lines = note.read_text().split("\n")[:-1]
    assert len(lines) == 40
    assert len({line.split()[0] for line in lines}) == 1
    counts = [int(line.split()[1]) for line in lines]
    assert max(counts[:20]) <= 15


def test_the_shortest_job_goes_first_under_srtf(tmp_path: Path) -> None:
    with executor(tmp_path, order="srtf"):
        long = FakeSeat(tmp_path).host("long", "counting", "100", "0.01")
        long.until("step")
        short = FakeSeat(tmp_path).host("short", "counting", "10", "0.01")
        short.until("done")
        long.listen(0)
        assert not any("done" in one for one in long.heard)
        assert long.until("done") == 100


def test_a_job_that_does_not_fit_waits_for_another_to_end(tmp_path: Path) -> None:
    with executor(tmp_path, bytes="1000"):
        first = FakeSeat(tmp_path).host("1", "sized", "600", "100", "50", "0.01")
        first.until("step")
        second = FakeSeat(tmp_path).host("2", "sized", "600", "100")
        assert second.until("waits").startswith("it needs 6e-07 GB")
        first.until("done")
        assert second.until("done") == 5


def test_a_job_that_never_fits_is_refused(tmp_path: Path) -> None:
    with executor(tmp_path, bytes="1000"):
        other = FakeSeat(tmp_path).host("1", "sized", "1", "1", "50", "0.01")
        told = FakeSeat(tmp_path).host("2", "sized", "900", "101").until("error")
        assert told.startswith("it does not fit on this GPU: it needs ")
        assert other.until("done") == 50


@pytest.mark.parametrize(
    ("factory", "arguments", "told"),
    [
        ("odd", ["factory"], "hosted_jobs:odd: RuntimeError: no data here (hosted_jobs.py:"),
        ("odd", ["raises"], "ValueError: a bad step (hosted_jobs.py:"),
        ("odd", ["nan"], "loss is nan after step 3"),
        ("nothing", [], "hosted_jobs:nothing: it gives NoneType, which has no method `step`"),
        ("missing", [], "hosted_jobs:missing: the module has no function 'missing'"),
        ("no_such_module:f", [], "no_such_module:f: there is no module 'no_such_module' in "),
        ("counting", ["x"], "hosted_jobs:counting: ValueError: invalid literal"),
    ],
)
def test_an_error_of_a_job_is_its_own(tmp_path: Path, factory: str, arguments: list[str], told: str) -> None:
    with executor(tmp_path):
        other = FakeSeat(tmp_path).host("other", "counting", "20", "0.01")
        other.until("step")
        assert FakeSeat(tmp_path).host("bad", factory, *arguments).until("error").startswith(told)
        assert other.until("done") == 20


def test_a_nan_is_reported_and_the_job_goes_on(tmp_path: Path) -> None:
    with executor(tmp_path):
        seat = FakeSeat(tmp_path).host("1", "odd", "nan reported")
        assert [seat.until("log") for _ in range(2)] == ["it prints", "\n"]
        assert seat.until("log").startswith("fairway: loss is nan after step ")
        seat.until("step")


def test_a_job_may_end_by_itself(tmp_path: Path) -> None:
    with executor(tmp_path):
        assert FakeSeat(tmp_path).host("1", "odd", "stops").until("done") == 2


def test_a_job_that_leaves_goes_on_where_it_was(tmp_path: Path) -> None:
    saved, note = _attempt(tmp_path, "checkpoints"), tmp_path / "note"
    with executor(tmp_path):
        seat = FakeSeat(tmp_path).host("1", "counting", "200", "0.01", str(note), checkpoints=str(saved))
        seat.until("step")
        seat.say({"leave": True})
        seat.until("saved")
        at = seat.until("left")
        assert 1 <= at < 200
        again = FakeSeat(tmp_path).host("1", "counting", "200", "0.001", str(note), checkpoints=str(saved), resume=True)
        assert again.until("hosted") == {"step": at, "steps": 200}
        assert again.until("done") == 200
    assert [int(line.split()[1]) for line in note.read_text().splitlines()] == list(range(1, 201))


def test_the_job_of_a_seat_that_is_gone_is_removed(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with executor(tmp_path):
        seat = FakeSeat(tmp_path).host("1", "counting", "100000", "0.01", str(note))
        seat.until("step")
        seat.close()
        at_rest(note.read_text)
        assert FakeSeat(tmp_path).host("1", "counting", "3").until("done") == 3


def test_a_job_stands_still_between_two_steps_while_its_keeper_wants_it(tmp_path: Path) -> None:
    attempt, note = _attempt(tmp_path, "attempt-1"), tmp_path / "note"
    with executor(tmp_path):
        seat = FakeSeat(tmp_path).host("1", "counting", "100000", "0.01", str(note), attempt=str(attempt))
        seat.until("step")
        assert (attempt / "yields").exists()
        leave_word(attempt, "paused", "yes")
        wait_for((attempt / "rests").exists, "it to stand still")
        before = note.read_text()
        time.sleep(0.2)
        assert note.read_text() == before
        leave_word(attempt, "paused", "no")
        wait_for(lambda: note.read_text() != before, "it to go on")
        wait_for(lambda: not (attempt / "rests").exists(), "it to say so")


def test_a_throttled_job_rests_between_its_steps(tmp_path: Path) -> None:
    attempt, note = _attempt(tmp_path, "attempt-1"), tmp_path / "note"
    leave_word(attempt, "throttle", "0.1")
    with executor(tmp_path):
        seat = FakeSeat(tmp_path).host("1", "counting", "100000", "0.02", str(note), attempt=str(attempt))
        seat.until("step")
        began_s, before = time.monotonic(), len(note.read_text().splitlines())
        wait_for(lambda: len(note.read_text().splitlines()) >= before + 5, "five steps")
        # Of 0.02 s each, with nine times as much rest after each.
        assert time.monotonic() - began_s > 0.7
        assert (attempt / "eased-0").exists()


def test_an_executor_without_jobs_ends(tmp_path: Path) -> None:
    with executor(tmp_path, idle_s="0.3") as process:
        assert FakeSeat(tmp_path).host("1", "counting", "3").until("done") == 3
        assert process.wait(WAIT_S) == 0


def test_an_executor_that_a_job_is_announced_to_does_not_end(tmp_path: Path) -> None:
    with executor(tmp_path, idle_s="2") as process:
        FakeSeat(tmp_path)
        until_s = time.monotonic() + 4.0
        while time.monotonic() < until_s:
            tmp_path.with_name("wanted").touch()
            time.sleep(0.05)
        assert process.poll() is None


def test_a_job_that_kills_its_executor_again_and_again_is_refused(tmp_path: Path) -> None:
    for _ in range(MOST_CRASHES):
        with executor(tmp_path) as process:
            seat = FakeSeat(tmp_path).host("bad", "odd", "dies")
            assert process.wait(WAIT_S) == -signal.SIGKILL
            seat.close()
    with executor(tmp_path):
        assert "has died in steps of this job" in FakeSeat(tmp_path).host("bad", "odd", "dies").until("error")
        assert FakeSeat(tmp_path).host("good", "counting", "3").until("done") == 3


@pytest.mark.slow
def test_a_step_that_does_not_end_is_left_behind_with_its_executor(tmp_path: Path) -> None:
    with executor(tmp_path) as process:
        seat = FakeSeat(tmp_path).host("1", "odd", "hangs")
        seat.until("log")
        seat.close()
        assert process.wait(WAIT_S) == STUCK


def test_nonsense_of_a_seat_is_refused(tmp_path: Path) -> None:
    with executor(tmp_path):
        seat = FakeSeat(tmp_path)
        seat.say({"host": {"job": "1"}})
        assert seat.until("error") == "the executor cannot read what to host: 'factory'"
        twice = FakeSeat(tmp_path).host("1", "counting", "1000", "0.01")
        twice.until("step")
        assert FakeSeat(tmp_path).host("1", "counting").until("error") == "job 1 is hosted already"


def test_a_factory_finds_the_variables_of_its_job_and_of_no_other(tmp_path: Path) -> None:
    with executor(tmp_path):
        told = []
        for task in ("0", "1"):
            own = {"FAIRWAY_ARRAY_TASK_ID": task, "LR": f"0.{task}", "PATH": f"/of/{task}"}
            seat = FakeSeat(tmp_path).host(task, "configured", f"r{task}", environment=own)
            told.append(seat.until("log"))
            seat.until("done")
        assert told == ["task 0 rate r0 0.0 own /of/0", "task 1 rate r1 0.1 own /of/1"]
        assert FakeSeat(tmp_path).host("2", "left_behind").until("log") == "left None None 1"


def test_a_seat_replaces_variables_in_the_arguments_of_its_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FAIRWAY_ARRAY_TASK_ID": "3", "LR": "0.1"}.items():
        monkeypatch.setenv(name, value)
    words = ["$FAIRWAY_ARRAY_TASK_ID", "lr=${LR}", r"\$LR", "5$", "$LR/$LR"]
    seat = Seat(Context.from_environment(), tmp_path / "socket", "hosted_jobs:configured", words)
    wanted = seat._wanted()
    assert wanted["arguments"] == ["3", "lr=0.1", "$LR", "5$", "0.1/0.1"]
    assert wanted["environment"]["LR"] == "0.1"
    wrong = Seat(Context.from_environment(), tmp_path / "socket", "hosted_jobs:configured", ["$NOT_THERE"])
    assert wrong.run() == 1
    assert "$NOT_THERE: the job has no variable NOT_THERE. Give it with --env" in capsys.readouterr().out
