"""One description of a job: records from before it still load, the API and the command line follow it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fairway.api.schema import Imagined, Submission
from fairway.cli.main import app
from fairway.cli.submit_options import AskedTerms, fields_of_options, option_names
from fairway.core.errors import InputError
from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.jobs.request import Dependency, JobRequest, JobTerms, checked, description
from fairway.runtime.processes.environment import launch_of

RECORDS = json.loads((Path(__file__).parent / "records_before_schema.json").read_text(encoding="utf-8"))
"""Written by the code before there was one schema, which kept an empty environment."""
TERMS = {one.name for one in fields(JobTerms)}


@pytest.mark.parametrize("stored", RECORDS, ids=lambda stored: stored["id"])
def test_records_from_before_load_and_are_stored_as_they_were(stored: dict[str, Any]) -> None:
    request = JobRecord.from_plain(stored).request
    wanted = {name: value for name, value in stored["request"].items() if value != {}}
    assert json.loads(json.dumps(request.plain())) == wanted
    assert JobRequest.from_plain(request.plain()) == request


def test_a_record_of_before_means_what_it_meant() -> None:
    request = JobRequest.from_plain(RECORDS[1]["request"])
    assert (request.command[-2:], request.gpu_types) == (("größer 日本 🚀", ""), ("a100", "H100 80GB"))
    assert (request.gpus, request.gpus_min, request.gpus_max, request.elastic) == (2, 1, 4, True)
    assert request.depends == (Dependency("afterok", "12"), Dependency("afterany", "14_3"))
    assert (request.limit_s, request.grace_s, request.steps, request.hold) == (7200, 90, 10, True)
    task = JobRequest.from_plain(RECORDS[2]["request"])
    assert (task.array_task, task.env, task.client_key) == (7, {"FAIRWAY_ARRAY_TASK_ID": "7"}, "k/7")


def test_the_api_has_the_fields_of_a_job_and_arrays() -> None:
    assert {one.name for one in fields(Submission)} == TERMS | {"array"}
    assert {one.name for one in fields(Imagined)} == TERMS
    assert {one.name for one in fields(JobRequest)} == TERMS | {"array_task", "account"}


def test_every_field_says_what_it_is_for() -> None:
    assert all(description(name) for name in TERMS)


def test_options_are_fields_of_a_job_and_have_their_help() -> None:
    options = fields_of_options()
    assert {one.field for one in options.values()} <= TERMS
    assert {one.name for one in fields(AskedTerms)} == {*options, "array", "export"}
    for verb in ("submit", "run", "what-if"):
        command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
        told = " ".join(command.get_help(typer.Context(command)).split())
        assert "--time T The longest that it may run: 2h, 1h30m or 1-12:00:00" in told
        assert ". Default: 60 s" in told
        for option, (name, _) in options.items():
            assert option == "per_gpu" or description(name)[1:] in told


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"gpus": "2"}, "--gpus: must be a whole number, not '2'"),
        ({"gpus": 0}, "--gpus: must be at least 1, not 0"),
        ({"limit_s": 0}, "--time: must be more than 0, not 0"),
        ({"retries": 1001}, "--retries: must be at most 1,000, not 1001"),
        ({"weight": float("nan")}, "--weight: must be a finite number, not nan"),
        ({"hold": "yes"}, "--hold: must be true or false, not 'yes'"),
        ({"name": "x" * 300}, "--name: is longer than 200 characters: 'xxx"),
        ({"env": {"A-B": "1"}}, "--env.A-B: has characters that it may not have: 'A-B'"),
        ({"env": {f"V{k}": "" for k in range(1025)}}, "--env: has more than 1,024 entries"),
        (
            {"depends": [{"kind": "after", "job": "1"}]},
            "--depends.0.kind: must be 'afterok', 'afterany' or",
        ),
        ({"colour": "red"}, "colour: there is no such field"),
        ({"command": ()}, "command: is empty"),
        ({"command": ("",)}, "command: there is no program"),
        ({"command": ("x" * 100_000, "y" * 100_000)}, "command: is longer than 131,072 characters"),
        ({"gpus_min": 3, "gpus_max": 2}, "gpus: 1 is not in the elastic range 3..2"),
        ({"gpus_max": 4}, "preempt: only jobs that are preempted by checkpoint can change their number of GPUs"),
    ],
)
def test_what_may_not_be_is_one_line_that_names_it(values: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        checked(JobRequest, {"command": ("true",), **values}, option_names())
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        checked(JobRequest, {"gpus": "x", "retries": -1, "more": 1})
    whole = "must be a whole number, not 'x'"
    told = f"command: is missing; gpus: {whole}; retries: must be at least 0, not -1; more: there is no such field"
    assert str(caught.value) == told


def test_code_that_changes_a_request_keeps_its_words() -> None:
    """The API tells new jobs by the identity of their command."""
    request = checked(JobRequest, {"command": ["python", "t.py"]})
    assert replace(request, weight=2.0).task(3).command is request.command


def test_the_number_of_a_task_is_in_its_environment_when_it_is_started(tmp_path: Path) -> None:
    request = JobRequest(command=("true",), account="ada", env={"A": "1", "FAIRWAY_ARRAY_TASK_ID": "no"})
    tasks = [request.task(number) for number in (3, 4)]
    assert all(task.env is request.env for task in tasks)
    for task in tasks:
        record = JobRecord(0, f"12_{task.array_task}", task, 1.0)
        env = launch_of(record, Attempt(1, [0], "t", 1.0), tmp_path, None)["ranks"][0]["env"]
        assert (env["A"], env["FAIRWAY_ARRAY_TASK_ID"]) == ("1", str(task.array_task))
