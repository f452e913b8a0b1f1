"""Help, suggestions and completion: every command can be found and tells how it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from cli_samples import Shell

from fairway.cli.completion import active_jobs, all_jobs
from fairway.cli.main import app
from fairway.client import Client, NotUpError
from fairway.testing.seeds import some
from fairway.traces.generate import GENERATORS, parameters


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, by the words that call it."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


EVERY = [" ".join(words) for words in commands()]


@pytest.mark.parametrize("command", EVERY)
def test_every_help_has_an_example(shell: Shell, command: str) -> None:
    call = shell(*command.split(), "--help")
    assert call.code == 0
    assert f"\n  fairway {command}" in call.out.partition("\n")[2]


@pytest.mark.parametrize("command", some(EVERY, 12))
def test_help_is_the_same_in_each_way(shell: Shell, command: str) -> None:
    full = shell(*command.split(), "--help").out
    assert shell(*command.split(), "-h").out == full
    assert shell("help", *command.split()).out == full


def test_help_alone_is_that_of_fairway(shell: Shell) -> None:
    assert shell("help").out == shell("--help").out == shell("-h").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("help", "sumbit"), "no such command 'sumbit'; did you mean submit? (see fairway --help)"),
        (("help", "trace", "genrate"), "no such command 'genrate'; did you mean generate? (see fairway trace --help)"),
        (("help", "ls", "more"), "`fairway ls` has no commands of its own (see fairway ls --help)"),
        (("stop", "3"), "no such command 'stop'; `fairway cancel JOB` ends a job, `fairway down` stops the scheduler"),
        (("squeue",), "no such command 'squeue'; `fairway ls` lists jobs (see fairway --help)"),
        (("scancel", "3"), "no such command 'scancel'; `fairway cancel JOB` ends a job (see fairway --help)"),
        (("sinfo",), "no such command 'sinfo'; `fairway nodes` shows machines and GPUs (see fairway --help)"),
        (("qqqq",), "no such command 'qqqq' (see fairway --help)"),
        (("cancle", "3"), "no such command 'cancle'; did you mean cancel? (see fairway --help)"),
        (("cancel", "--all"), "no such option: --all; name the jobs; `fairway ls` lists their ids"),
        (
            ("submit", "--ram", "4G", "--", "true"),
            "no such option: --ram; --mem SIZE limits the memory of the machine",
        ),
        (("submit", "--cores", "4", "--", "true"), "no such option: --cores; --cpus N limits a job"),
        (("run", "--nodes=2", "--", "true"), "no such option: --nodes; --gpus N asks for all GPUs of a job"),
        (("submit", "-N", "2", "--", "true"), "no such option: -N; --gpus N asks for all GPUs of a job"),
        (("submit", "--partition", "a", "--", "true"), "no such option: --partition; --queue NAME"),
        (("submit", "--prio", "3", "--", "true"), "no such option: --prio; did you mean --priority?"),
        (("nodes", "--cpus"), "no such option: --cpus (see fairway nodes --help)"),
        (("policies", "tiresia"), "unknown policy 'tiresia'; did you mean tiresias? (`fairway policies` lists them)"),
    ],
)
def test_what_does_not_exist_is_answered_with_what_was_meant(shell: Shell, words: tuple[str, ...], told: str) -> None:
    call = shell(*words)
    assert (call.code, call.out) == (2, "")
    assert call.err.startswith(f"fairway: error: {told}")


def test_no_known_word_is_itself_a_command_or_option() -> None:
    from fairway.cli import suggestions

    group: Any = typer.main.get_command(app)
    assert not set(suggestions._COMMANDS) & set(group.commands)
    for command, options in suggestions._OPTIONS.items():
        own = {name for parameter in group.commands[command].params for name in parameter.opts}
        assert not set(options) & own


def completed(shell: Shell, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_FAIRWAY_COMPLETE", "complete_bash")
    call = shell()
    assert (call.code, call.err) == (0, "")
    return call.out.split()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("3", "RUNNING", "bert"), ("12_0", "PENDING", "x`$(rm)`"), ("12_1", "PENDING", ""), ("30", "PENDING", "")]
    told = [{"id": name, "state": state, "name": text, "command": "true"} for name, state, text in rows]
    ended = {"id": "1", "state": "COMPLETED", "name": "", "command": "true"}
    monkeypatch.setattr(Client, "ls", lambda self, state, limit: told if state else [ended, *told])


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fairway cancel ", ["3", "12", "30"]),
        ("fairway cancel 3", ["3", "30"]),
        ("fairway why 12_", ["12_0", "12_1"]),
        ("fairway cancel 3 12_", ["12_0", "12_1"]),
        ("fairway show ", ["1", "3", "12", "30"]),
        ("fairway logs 1", ["1", "12"]),
        ("fairway sus", ["suspend"]),
        ("fairway policies tir", ["tiresias"]),
        ("fairway submit --pri", ["--priority"]),
    ],
)
def test_the_shell_completes(shell: Shell, monkeypatch: pytest.MonkeyPatch, line: str, offered: list[str]) -> None:
    assert completed(shell, monkeypatch, line) == offered


@pytest.mark.usefixtures("jobs")
def test_words_of_others_cannot_reach_a_shell() -> None:
    context: Any = typer.main.get_command(app).make_context("fairway", [], resilient_parsing=True)
    assert dict(active_jobs(context, ""))["12"] == "array true"
    assert dict(all_jobs(context, "12_"))["12_0"] == "PENDING xrm"


@pytest.mark.parametrize("error", [NotUpError("x"), OSError("x"), ValueError("x")])
def test_without_a_scheduler_nothing_is_offered(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(self: Client, **query: Any) -> Any:
        raise error

    monkeypatch.setattr(Client, "ls", fail)
    assert completed(shell, monkeypatch, "fairway cancel ") == []


def test_one_policy_is_shown_in_full(shell: Shell) -> None:
    text = shell("policies", "tiresias").out
    for part in ("NSDI'19", "queues=3250/7200", "gittins=off  (one of off, within, exact)", "Preempts"):
        assert part in text
    assert "fifo" not in text


def test_every_policy_can_be_shown(shell: Shell) -> None:
    import json

    for one in json.loads(shell("policies", "--json").out):
        told = json.loads(shell("policies", one["name"], "--json").out)
        assert {**told, **one} == told
        assert told["source"]


def test_the_help_of_a_generator_lists_all_its_parameters(shell: Shell) -> None:
    lines = shell("trace", "generate", "--help").out.splitlines()
    for name in GENERATORS:
        (listed,) = [line.split()[1:] for line in lines if line.split()[:1] == [name]]
        assert {*listed, "jobs", "seed"} == parameters(name).keys()
