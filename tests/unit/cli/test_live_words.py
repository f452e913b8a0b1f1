"""Words of the command line about live jobs: deadlines, refusals, and what is said about them."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cli_samples import Shell

from fairway.cli.log_lines import LineSplitter
from fairway.client import Client, Submitted
from fairway.submission.quantities import instant_s

SUBMITTED_S_AGO = 3600.0


@pytest.fixture
def updated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A scheduler with a job and an array that were submitted an hour ago, and the changes that it was told."""
    changes: list[dict[str, Any]] = []

    def show(self: Client, job: str) -> dict[str, Any]:
        task = {"id": f"{job}_0", "submitted_s": time.time() - SUBMITTED_S_AGO}
        return {"id": job, "tasks": [task]} if job == "13" else task

    def update(self: Client, job: str, **given: Any) -> list[dict[str, Any]]:
        changes.append(given)
        return [{"id": job, "state": "PENDING"}]

    monkeypatch.setattr(Client, "show", show)
    monkeypatch.setattr(Client, "update", update)
    return changes


@pytest.mark.parametrize("job", ["12", "13"])
@pytest.mark.parametrize("text", ["6h", "now+6h", "18:00", "2099-01-31T18:00"])
def test_a_new_deadline_means_what_it_means_to_submit(
    shell: Shell, updated: list[dict[str, Any]], job: str, text: str
) -> None:
    ahead_s = instant_s(text, datetime.now().astimezone()) - time.time()
    assert shell("update", job, "--deadline", text, "--priority", "2").out == f"job {job} updated\n"
    (changes,) = updated
    # Around 18:00 the next one may be that of tomorrow by the time that it is asked for.
    assert changes.pop("deadline_s") % 86400 == pytest.approx((ahead_s + SUBMITTED_S_AGO) % 86400, abs=60)
    assert changes == {"priority": 2}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2001-01-01", "--deadline: '2001-01-01' is past"),
        ("0", "--deadline: '0' is past"),
        ("30:00", "--deadline: '30:00' is not a time of day; write 16:00, or now+30:00 for a duration"),
    ],
)
def test_a_deadline_is_refused_as_by_submit(shell: Shell, updated: list[dict[str, Any]], text: str, told: str) -> None:
    calls = [shell("update", "12", "--deadline", text), shell("submit", "--deadline", text, "--", "true")]
    assert [(call.code, call.out, call.err) for call in calls] == [(2, "", f"fairway: error: {told}\n")] * 2
    assert updated == []


def test_a_deadline_can_be_taken_away(shell: Shell, updated: list[dict[str, Any]]) -> None:
    assert shell("update", "12", "--deadline", "none").code == 0
    assert updated == [{"deadline_s": None}]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("update", "1", "--priority", "abc"), "--priority 'abc' is not a whole number (see fairway update --help)"),
        (("update", "1", "--priority", "1.5"), "--priority '1.5' is not a whole number (see fairway update --help)"),
        (("update", "1", "--weight", "abc"), "--weight 'abc' is not a number (see fairway update --help)"),
        (("ls", "-n", "0"), "--limit '0' is too small; it must be at least 1 (see fairway ls --help)"),
        (("update", "1", "--weight", "1e308"), "--weight: must be at most 1,000,000, not 1e+308"),
        (("update", "1", "--weight", "inf"), "--weight: must be a finite number, not inf"),
        (("update", "1", "--weight", "nan"), "--weight: must be a finite number, not nan"),
        (("submit", "--", "echo", "\udcff"), "command.1: must be UTF-8, not '\\udcff'"),
        (("submit", "--env", "A=\udcff", "--", "true"), "--env.A: must be UTF-8, not '\\udcff'"),
        (("submit", "--name", "\udcff", "--", "true"), "--name: must be UTF-8, not '\\udcff'"),
        (("submit", "--chdir", "/\udcff", "--", "true"), "--chdir: must be UTF-8, not '/\\udcff'"),
        (("submit", "--name", "a/b", "--", "true"), "--name: has characters that it may not have: 'a/b'"),
        (("submit", "--time", "0", "--", "true"), "--time: must be more than 0, not 0.0"),
        (
            ("submit", "--preempt", "no", "--", "true"),
            "--preempt: must be 'checkpoint', 'suspend', 'restart' or",
        ),
        (("submit", "--time", "soon", "--", "true"), "--time: 'soon' is not a duration; write 90, 30m, 2h, 1h30m"),
        (("submit", "--memory", "16", "--", "true"), "--memory: '16' is not a size; write 512M or 16G"),
        (("submit", "--env", "A", "--", "true"), "--env: 'A' is not written like NAME=value"),
        (("ls", "--since", "yesterday"), "--since: 'yesterday' is not a time; write 30m, 16:00, 2026-01-31 or"),
        (("what-if", "--horizon", "long"), "--horizon: 'long' is not a duration; write 90, 30m, 2h"),
        (("what-if", "12", "--gpus", "2"), "12 is the id of a job; options of `submit` are only for a new job"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.setattr(Client, "_json", lambda *_, **__: pytest.fail("the scheduler was asked"))
    call = shell(*words)
    assert (call.code, call.out, call.err.count("\n")) == (2, "", 1)
    assert told in call.err
    assert "Input should" not in call.err


def test_a_directory_that_is_gone_is_named_as_the_trouble(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, state = tmp_path / "gone", str(tmp_path / "state")
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert "the current directory does not exist" in shell("submit", "--state", state, "--", "true").err
        assert "no scheduler is running" in shell("submit", "--state", state, "--chdir", "/", "--", "true").err
    finally:
        monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("folder", ["/nonexistent", "/"])
def test_a_scheduler_elsewhere_may_have_other_folders(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    sent: list[Any] = []

    def submit(self: Client, body: Any, *, key: str | None = None) -> Submitted:
        sent.append(body["cwd"])
        return Submitted([{"id": "1", "reason": ""}], 1)

    monkeypatch.setattr(Client, "submit", submit)
    words = ("submit", "--chdir", folder, "--export", "NONE", "--url", "http://127.0.0.1:1", "--", "true")
    assert (shell(*words).code, sent) == (0, [folder])


def test_what_is_not_utf8_is_not_carried_along(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def submit(self: Client, body: Any, *, key: str | None = None) -> Submitted:
        sent.append(body["env"])
        return Submitted([{"id": "1", "reason": ""}], 1)

    monkeypatch.setattr(Client, "submit", submit)
    monkeypatch.setenv("OLD_NAME", "caf\udce9")
    monkeypatch.setenv("NEW_NAME", "café")
    assert shell("submit", "--export", "all", "--", "true").code == 0
    assert shell("submit", "--export", "OLD_NAME", "--", "true").code == 2
    assert (sent[0]["NEW_NAME"], "OLD_NAME" in sent[0]) == ("café", False)


@pytest.mark.parametrize(
    ("default", "words", "gets"),
    [
        ("ALL", (), {"MINE": "1", "MLFLOW_TRACKING_URI": "http://m"}),
        ("NONE", (), {}),
        ("MINE", (), {"MINE": "1"}),
        ("NONE", ("--export", "MINE,A=2"), {"MINE": "1", "A": "2"}),
        ("ALL", ("--user", "ann"), {"MINE": "1", "MLFLOW_TRACKING_URI": "http://m"}),
        ("ALL", ("--user", "bob"), {}),
        ("ALL", ("--user", "bob", "--export", "MINE"), {"MINE": "1"}),
    ],
)
def test_the_scheduler_says_what_goes_along_if_nobody_else_does(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, default: str, words: tuple[str, ...], gets: dict[str, str]
) -> None:
    sent: list[Any] = []

    def submit(self: Client, body: Any, *, key: str | None = None) -> Submitted:
        sent.append(body.get("env", {}))
        return Submitted([{"id": "1", "reason": ""}], 1)

    monkeypatch.setattr(Client, "submit", submit)
    monkeypatch.setattr(Client, "status", lambda self: {"export": default, "you": "ann"})
    for name, value in {"MINE": "1", "MLFLOW_TRACKING_URI": "http://m", "RANK": "3", "TOO_LARGE": "x" * 10**6}.items():
        monkeypatch.setenv(name, value)
    call = shell("submit", *words, "--", "true")
    assert call.code == 0
    names = ("MINE", "MLFLOW_TRACKING_URI", "RANK", "TOO_LARGE", "A")
    assert {name: value for name, value in sent[0].items() if name in names} == gets
    assert ("TOO_LARGE" in call.err) == ("MLFLOW_TRACKING_URI" in gets)


def test_requeueing_says_what_it_costs(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = {"1": None, "2": None, "3": 1200.0}
    rows = [
        {"id": job, "state": "PENDING", "reason": "", "from_the_beginning": job == "1", "from_step": step}
        for job, step in starts.items()
    ]
    monkeypatch.setattr(Client, "requeue", lambda self, job: [rows[int(job) - 1]])
    told = "job 1 PENDING; it has saved nothing and starts from the beginning\njob 2 PENDING\n"
    told += "job 3 PENDING; it continues from its checkpoint at step 1,200\n"
    assert shell("requeue", "1", "2", "3").out == told


@pytest.mark.parametrize(
    ("words", "question", "first"),
    [
        (("nonsense",), "job", "a new job: `nonsense`"),
        (("python", "a b.py"), "job", "a new job: `python 'a b.py'`"),
        (("--gpus", "2"), "job", "a new job: 2 GPUs"),
        (("--gpus", "2", "--array", "0-2"), "jobs", "3 new jobs: 2 GPUs"),
        (("12_3",), "ids", "no jobs wait or run"),
    ],
)
def test_a_forecast_says_what_it_is_of(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], question: str, first: str
) -> None:
    def what_if(self: Client, **asked: Any) -> dict[str, Any]:
        assert list(asked) == [question]
        row = {"gpus": 1, "start_in_s": 0.0, "finish_in_s": 1.0, "preemptions": 0}
        figures = {"never_start": 0, "not_finished": 0, "mean_jct_s": None, "all_done_in_s": None, "preemptions": 0}
        new = [] if question == "ids" else [row]
        return {"policy": "fifo", "jobs": [], "new": new, "left_out": 0, "cut": "", "problem": "", **figures}

    monkeypatch.setattr(Client, "what_if", what_if)
    call = shell("what-if", *words)
    assert (call.code, call.out.splitlines()[0]) == (0, first)


def test_lines_are_whole_however_they_come() -> None:
    lines = LineSplitter()
    told = [lines.of(piece) for piece in (b"a", b"b\nc\n", b"\n", b"d")]
    assert (told, lines.last(), lines.last()) == ([[], [b"ab", b"c"], [b""], []], [b"d"], [])
    endless = [lines.of(b"x" * 50_000) for _ in range(4)]
    assert [sum(map(len, some)) for some in endless] == [0, 100_000, 0, 100_000]
