"""What people see of the live scheduler, and the exit codes of what goes wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli_samples import Shell

from fairway.cli import output
from fairway.cli.live import exit_code_of
from fairway.cli.live_tables import gpus_text, job_table, jobs_table, nodes_table
from fairway.cli.top import picture
from fairway.client import Client, ClientError, NotUpError, RefusedError, Submitted
from fairway.core.errors import InputError

ROW: dict[str, Any] = {
    "id": "12",
    "name": "[red]bert[/red]",
    "user": "ann",
    "queue": "",
    "state": "RUNNING",
    "reason": "",
    "gpus": 1,
    "gpus_min": 1,
    "gpus_max": 1,
    "gpus_held": 1,
    "priority": 0,
    "submitted_s": 1000.0,
    "started_s": 1010.0,
    "ended_s": None,
    "ran_s": 90.0,
    "gpu_s": 90.0,
    "attempts": 1,
    "preemptions": 0,
    "exit_code": None,
    "step": 50.0,
    "steps": 200.0,
    "command": "python train.py",
}
STATUS: dict[str, Any] = {
    "version": "1",
    "pid": 1,
    "user": "ann",
    "folder": "/s",
    "export": "ALL",
    "you": "ann",
    "since_s": 0.0,
    "now_s": 0.0,
    "policy": "las",
    "problem": "",
    "cluster": "cpu:2",
    "gpus": 2,
    "gpus_held": 1,
    "jobs": {"RUNNING": 1},
    "rounds": 3,
    "free_bytes": 2**30,
    "accepts": True,
    "operator": True,
}
NODES: list[dict[str, Any]] = [
    {
        "name": "here",
        "gpu_type": "cpu",
        "memory_bytes": 0,
        "gpus": [
            {"index": 0, "device": None, "use": "held", "jobs": ["12"], "reason": ""},
            {"index": 1, "device": None, "use": "foreign", "jobs": [], "reason": "python (bob)"},
        ],
    }
]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    """A scheduler that answers with a row, and what it was asked."""
    asked: list[tuple[str, str, Any]] = []

    def answer(self: Client, method: str, path: str, body: Any = None, **more: Any) -> Any:
        asked.append((method, path, body))
        if path == "/status":
            return STATUS
        if path == "/nodes":
            return {"nodes": NODES}
        if path == "/policy":
            return {"policy": "las", "name": "las", "round_s": 0.0, "problem": "", "known": []}
        return {"jobs": [ROW]}

    monkeypatch.setattr(Client, "_json", answer)
    return asked


def test_names_are_shown_as_they_are() -> None:
    assert "[red]bert[/red]" in output.rendered(jobs_table([ROW], 1100.0))
    assert "50/200" in output.rendered(jobs_table([ROW], 1100.0))


def test_elastic_jobs_show_what_they_have() -> None:
    assert gpus_text(ROW | {"gpus_max": 4, "gpus_held": 2}) == "2 of 1-4"
    assert gpus_text(ROW | {"gpus_max": 4, "gpus_held": 0}) == "1-4"


def test_nodes_show_what_is_wrong_with_them() -> None:
    about = {"status": "drained", "reason": "drained by opera: new disks"}
    gpus = [{"index": 0, "device": None, "use": "drained", "jobs": [], "reason": "node n1 is drained by opera"}]
    text = output.rendered(nodes_table([*NODES, {**NODES[0], **about, "name": "n1", "gpus": gpus}]))
    assert [line.split()[:3] for line in text.splitlines() if " cpu " in line] == [
        ["here", "up", "0"],
        ["here", "up", "1"],
        ["n1", "drained", "0"],
    ]
    assert "n1  drained by opera: new disks" in text


def test_how_busy_gpus_are_is_shown_where_it_is_known() -> None:
    told = {"utilisation": 0.734, "memory_used_bytes": 3 << 29}
    gpus = [NODES[0]["gpus"][0] | told, NODES[0]["gpus"][1] | dict.fromkeys(told)]
    nodes = [{**NODES[0], "memory_bytes": 16 << 30, "gpus": gpus}]
    lines = output.rendered(nodes_table(nodes)).splitlines()
    assert [line.split("cpu")[1].split()[:5] for line in lines if " cpu " in line] == [
        ["1.5", "of", "16", "GiB", "73%"],
        ["16", "GiB", "–", "foreign", "python"],
    ]
    assert "[12 73%][×]" in output.rendered(picture({"status": STATUS, "nodes": nodes, "jobs": []}))
    assert "busy" not in output.rendered(nodes_table(NODES))


def test_nodes_are_drained_by_name(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"node": {"name": "n1", "gpus": [{"jobs": ["7", "8"]}, {"jobs": ["8"]}]}, "moved": ["7"]}
    asked: list[tuple[str, str, Any]] = []

    def answer(self: Client, method: str, path: str, body: Any = None, **more: Any) -> Any:
        asked.append((method, path, body))
        return told

    monkeypatch.setattr(Client, "_json", answer)
    call = shell("node", "drain", "n1", "--reason", "new disks", "--move")
    assert call.code == 0, call.err
    assert call.out == "node n1 is drained; job 7 leaves it; job 8 is still there\n"
    assert asked == [("POST", "/nodes/n1/drain", {"reason": "new disks", "move": True})]


def test_a_screen_shows_the_jobs_that_fit() -> None:
    rows = [ROW | {"id": str(number)} for number in range(100)]
    text = output.rendered(picture({"status": STATUS, "nodes": NODES, "jobs": rows}, lines=20))
    assert "and 88 more" in text
    assert "[12][×]" in text
    assert len(text.splitlines()) <= 20


def test_a_policy_that_fails_is_seen() -> None:
    text = output.rendered(picture({"status": STATUS | {"problem": "it broke"}, "nodes": NODES, "jobs": []}))
    assert "it broke" in text


def test_foreign_processes_are_seen() -> None:
    assert "python (bob)" in output.rendered(nodes_table(NODES))


def test_one_job_in_full() -> None:
    attempt = {
        "number": 1,
        "gpus": [0],
        "launched_s": 1.0,
        "started_s": 2.0,
        "ended_s": 5.0,
        "codes": [75],
        "cause": "request",
    }
    told = ROW | {
        "request": {"command": ["a b", "c"], "limit_s": 60.0, "depends": [{"kind": "afterok", "job": "3"}]},
        "progress": {"reported_s": 1.0, "loss": 0.5, "steps_per_s": 2.0, "checkpoint": "x", "checkpoint_step": 40.0},
        "history": [attempt],
    }
    text = output.rendered(job_table(told))
    wrapped = told | {"request": told["request"] | {"shown": "train.sbatch 3"}}
    assert "train.sbatch 3" in output.rendered(job_table(wrapped))
    assert "a b" not in output.rendered(job_table(wrapped))
    for part in ("'a b' c", "afterok:3", "loss 0.5", "checkpoint at step 40", "75", "request"):
        assert part in text


def test_the_time_that_a_job_ran_and_that_its_attempts_lasted_are_told_apart() -> None:
    times = {"launched_s": 1000.0, "started_s": 1000.0, "ended_s": 1019.1}
    attempt = {"number": 1, "gpus": [0], "codes": [0], "cause": "", **times}
    told = ROW | {"request": {"command": ["a"]}, "progress": {}, "history": [attempt], "ran_s": 8.1, "gpu_s": 8.1}
    text = output.rendered(job_table(told))
    assert "8.1 s · GPU time 8.1 s · its attempts also stood still, started or stopped for 11.0 s" in text
    assert "lasted" in text
    assert "19.1 s" in text
    assert "stood still" not in output.rendered(job_table(told | {"ran_s": 19.0}))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotUpError("x"), 3),
        (RefusedError(404, "x"), 4),
        (RefusedError(403, "x"), 5),
        (RefusedError(409, "x"), 5),
        (RefusedError(401, "x"), 5),
        (RefusedError(422, "x"), 2),
        (RefusedError(507, "x"), 2),
        (ClientError("x"), 2),
        (InputError("x"), 2),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


def test_a_job_that_had_ended_is_said_to_have(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"1": ROW | {"id": "1", "state": "COMPLETED"}, "2": ROW | {"id": "2", "state": "CANCELLED"}}
    rows["3"] = rows["2"] | {"id": "3", "had_ended": True}
    monkeypatch.setattr(Client, "cancel", lambda self, job: [rows[job]])
    call = shell("cancel", "1", "2", "3")
    told = "job 1 had ended already: COMPLETED\njob 2 CANCELLED\njob 3 had ended already: CANCELLED\n"
    assert (call.code, call.out) == (0, told)


def test_a_cancelled_job_whose_processes_still_run_is_said_to_be_stopping(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ROW | {"state": "CANCELLED", "reason": "cancelled", "stopping_s": 60.0}
    monkeypatch.setattr(Client, "cancel", lambda self, job: [row])
    assert shell("cancel", "12").out == "job 12 CANCELLED; its processes have up to 1 min to stop\n"


def test_submit_tells_only_reasons_that_its_options_gave(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROW | {"state": "PENDING", "reason": "needs 1 GPU, 0 free"}
    monkeypatch.setattr(Client, "submit", lambda self, body, key=None: Submitted([row], 1))
    monkeypatch.setattr(Client, "status", lambda self: STATUS)
    assert shell("submit", "--", "true").out == "job 12 submitted\n"
    row["reason"] = "held by its owner"
    assert shell("submit", "--hold", "--", "true").out == "job 12 submitted: held by its owner\n"


def test_what_was_done_is_told_where_the_scheduler_goes_away(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def suspend(self: Client, job: str) -> list[dict[str, Any]]:
        if job != "12":
            raise NotUpError(f"gone at {job}")
        return [ROW]

    monkeypatch.setattr(Client, "suspend", suspend)
    call = shell("suspend", "12", "13", "14")
    assert (call.code, call.out, call.err) == (3, "job 12 RUNNING\n", "fairway: error: gone at 13\n")


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume", "requeue", "hold", "release"])
def test_verbs_are_passed_on(shell: Shell, stand_in: list[tuple[str, str, Any]], verb: str) -> None:
    told = "job 12 held; RUNNING\n" if verb == "hold" else "job 12 RUNNING\n"
    assert shell(verb, "12", "13_4").out == told + told
    assert stand_in == [("POST", f"/jobs/12/{verb}", None), ("POST", f"/jobs/13_4/{verb}", None)]


def test_updates_are_passed_on(shell: Shell, stand_in: list[tuple[str, str, Any]]) -> None:
    assert shell("update", "12", "--priority", "-3", "--deadline", "none", "--time", "1h").code == 0
    assert stand_in == [("PATCH", "/jobs/12", {"priority": -3, "deadline_s": None, "limit_s": 3600.0})]


def test_json_is_one_row_per_line(shell: Shell, stand_in: list[tuple[str, str, Any]]) -> None:
    out = shell("ls", "--json").out
    assert json.loads(out) == [ROW]
    assert out.count("\n") == 3


def test_a_submission_says_what_it_asks_for(shell: Shell, stand_in: list[tuple[str, str, Any]]) -> None:
    assert shell("submit", "--gpus", "1-4", "--array", "0-2%2", "--export", "none", "--", "x", "--json").code == 0
    ((_, _, body),) = stand_in
    assert (body["gpus_min"], body["gpus_max"], body["command"]) == (1, 4, ("x", "--json"))
    assert (body["array"], body["array_at_once"]) == ([0, 1, 2], 2)


def test_options_end_with_the_first_word_of_the_command(shell: Shell, stand_in: list[tuple[str, str, Any]]) -> None:
    assert shell("submit", "--name", "n", "python", "train.py", "--name", "m").code == 0
    *_, (_, _, body) = stand_in
    assert (body["name"], body["command"]) == ("n", ("python", "train.py", "--name", "m"))


def test_the_policy_can_be_set_with_options_in_either_place(shell: Shell, stand_in: list[tuple[str, str, Any]]) -> None:
    assert shell("policy", "set", "las", "--json").out.startswith("{")
    assert shell("policy", "--json", "set", "las").out.startswith("{")
    assert shell("policy").out == "las (decides at every event)\n"
    assert [method for method, _, _ in stand_in] == ["PUT", "PUT", "GET"]


def test_watching_a_pipe_is_one_look(shell: Shell, stand_in: list[tuple[str, str, Any]]) -> None:
    assert "1 of 2 GPUs held" in shell("top").out
