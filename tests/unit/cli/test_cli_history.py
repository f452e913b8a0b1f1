"""`fairway compare --history` and `fairway trace export`, from the state directory of a scheduler that does not run."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from cli_samples import Shell

from fairway.runtime.jobs.records import Attempt, JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.database import Journal

BEGAN_S = 1_700_000_000.0


@pytest.fixture
def state(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> str:
    """A state directory: two users had five jobs, one after the other, on one GPU under fifo."""
    monkeypatch.delenv("FAIRWAY_URL", raising=False)
    folder = Path(shell.path("state"))
    folder.mkdir()
    records, at_s = [], BEGAN_S
    for number, (work_s, user) in enumerate([(50, "ana"), (10, "ben"), (40, "ben"), (20, "ben"), (30, "ana")]):
        attempt = Attempt(1, [0], "t", at_s, at_s, at_s + work_s, ran_s=float(work_s))
        request = JobRequest(command=("true",), user=user, name=f"job of {user}", priority=0)
        about = {"started_s": at_s, "ended_s": at_s + work_s, "ran_s": float(work_s), "attempts": [attempt]}
        at_s += work_s
        records.append(JobRecord(number, str(number + 1), request, BEGAN_S, JobState.COMPLETED, **about))
    facts = {"machine": [[["v100", 1, "here"]], None], "policy": "fifo", "origin_s": BEGAN_S, "last_s": 150.0}
    with closing(Journal(folder / "journal.db")) as journal, journal.transaction():
        journal.set_facts(facts)
        journal.save_jobs(record.stored() for record in records)
    return str(folder)


def test_replays_beside_what_really_happened(shell: Shell, state: str) -> None:
    call = shell("compare", "--history", "2023-11-01", "--state", state, "srtf", "--html", shell.path("page.html"))
    assert (call.code, call.err) == (0, "")
    lines = [" ".join(line.split()) for line in call.out.splitlines()]
    assert lines[0].startswith("5 jobs from 2023-11-1")
    order = [line.split(" nothing ")[0].split(" duration ")[0] for line in lines[1:] if " 0.000 " in line]
    assert order[0] == "srtf"
    assert set(order) == {"srtf", "fifo", "actual (fifo)"}
    assert "user jobs actual (fifo) srtf fifo" in lines
    assert lines[-1] == (
        "srtf would have served this machine best: a mean completion time 27 % shorter than it really was "
        "(it was told true run times)"
    )
    assert "actual (fifo)" in Path(shell.path("page.html")).read_text()


def test_as_json_and_on_other_gpus(shell: Shell, state: str) -> None:
    call = shell("compare", "--history", "2023-11-01", "--state", state, "fifo", "--cluster", "v100:5", "--json", "-")
    told = json.loads(call.out)
    means = {row["policy"]: row["jct_mean_s"] for row in told["rows"]}
    assert means == {"actual (fifo)": pytest.approx(96), "fifo": pytest.approx(30)}
    assert told["history"]["verdict"].startswith("fifo would have served")
    assert told["history"]["from_s"] == BEGAN_S


def test_the_history_as_a_trace(shell: Shell, state: str) -> None:
    call = shell("trace", "export", "--history", "2023-11-01", "--state", state, "-o", shell.path("week.jsonl"))
    assert (call.code, call.out) == (0, f"wrote 5 jobs to {shell.path('week.jsonl')}\n")
    again = shell("simulate", shell.path("week.jsonl"), "--cluster", "v100:1", "--policy", "fifo", "--json", "-")
    assert json.loads(again.out)["jct_s"]["mean"] == pytest.approx(96)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("--history", "1h", "--state", "{}"), 2, "no job has run in this time"),
        (("--history", "bogus", "--state", "{}"), 2, "--history: 'bogus' is not a time"),
        (("--history", "7d", "--state", "{}/nowhere"), 3, "no scheduler is running"),
        (("--history", "2023-11-01", "--state", "{}", "nonsense"), 2, "unknown policy 'nonsense'"),
        ((), 2, "give a trace, or --history 7d"),
        (("jobs.csv",), 2, "--cluster is missing"),
        (("jobs.csv", "fifo", "--cluster", "v100:4"), 2, "one trace at a time, not also 'fifo'"),
    ],
)
def test_bad_words_are_one_line(shell: Shell, state: str, words: tuple[str, ...], code: int, why: str) -> None:
    call = shell("compare", *(word.format(state) for word in words))
    assert (call.code, call.out, len(call.err_lines)) == (code, "", 1)
    assert why in call.err
