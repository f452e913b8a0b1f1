"""An instant of a live scheduler as a file: the same decision again, or another policy's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairway.cli.main import app
from fairway.core.errors import InputError
from fairway.policies import make_policy
from fairway.runtime.guard.incident import Granted, Incident, granted
from fairway.runtime.guard.policy_guard import PolicyGuard
from fairway.testing import job, state_of


def incident(policy: str = "srtf") -> Incident:
    jobs = [job("long", 4, 900.0), job("short", 2, 9.0), job("held", 1, 5.0), job("wide", 4, 50.0)]
    guard = PolicyGuard(make_policy(policy), outside={2: "held by its owner"})
    snapshot = state_of(jobs, "v100:4", now_s=10.0, running={"long": 4}).snapshot(guard.knows)
    return Incident(snapshot, policy, {2: "held by its owner"}, {}, {}, "", granted(snapshot, guard.decide(snapshot)))


def test_the_same_policy_decides_the_same_from_the_file() -> None:
    then = incident()
    again = Incident.of_text(then.text())
    assert again.decided == then.decided == again.decide()
    assert again.decided[2] == Granted("held", 0, "held by its owner")


def test_another_policy_decides_otherwise_without_the_memory_of_the_first() -> None:
    then = incident("srtf")
    assert then.decide("fifo") != then.decided
    assert then.decide("fifo")[0].gpus == 4


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"fairway_incident": 99}', '{"fairway_incident": 1, "policy": 3}'])
def test_other_files_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as error:
        Incident.of_text(text)
    assert "\n" not in str(error.value)


def test_replay_says_where_decisions_differ(tmp_path: Path) -> None:
    path, runner = tmp_path / "then.json", CliRunner()
    path.write_text(incident().text())
    same = runner.invoke(app, ["replay", str(path)])
    assert same.exit_code == 0, same.output
    told = json.loads(runner.invoke(app, ["replay", str(path), "--policy", "fifo", "--json"]).stdout)
    assert (told["policy"], told["same"]) == ("fifo", False)
    data = json.loads(path.read_text())
    data["decided"][0][1] = 3
    path.write_text(json.dumps(data))
    assert runner.invoke(app, ["replay", str(path)]).exit_code == 1
    assert runner.invoke(app, ["replay", str(tmp_path / "none.json")]).exit_code != 0
