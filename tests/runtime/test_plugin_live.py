"""A policy of the operator's own decides about real jobs: given once, remembered, and refused in one line if gone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_cli import LiveCli, live_cli_in

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "my_policy.py"
WAITS = "while [ ! -e go ]; do sleep 0.1; done; echo $FAIRWAY_JOB_ID >> order"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LiveCli]:
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    yield from live_cli_in(tmp_path)


def _down(cli: LiveCli) -> str:
    """Stop the scheduler; what it had said on stderr."""
    assert cli("down").code == 0
    assert cli.daemon is not None
    return cli.daemon.communicate(timeout=60)[1]


def test_the_example_decides_live_and_is_remembered(cli: LiveCli) -> None:
    first = cli.start("--gpus", "2", "--plugin", "mine.py", "--policy", "largest")
    assert "policy largest" in first
    head = cli.submit("--gpus", "2", "--", "bash", "-c", WAITS)
    cli.wait_for(head, "RUNNING")
    small, large = cli.submit("--", "bash", "-c", WAITS), cli.submit("--gpus", "2", "--", "bash", "-c", WAITS)
    asked = cli("what-if", "--policy", "largest", "--json").json
    ends = {one["id"]: one["finish_in_s"] for one in asked["jobs"]}
    assert ends[large] < ends[small], "most GPUs first"
    assert cli("policy", "set", "fifo").code == 0
    assert cli("policy", "set", "largest").code == 0

    assert "as last time" not in _down(cli)
    assert "policy largest" in cli.start()
    (cli.folder / "go").touch()
    for job in (head, large, small):
        assert cli.wait_for(job, "COMPLETED")["attempts"] == 1
    assert (cli.folder / "order").read_text().split() == [head, large, small]
    told = _down(cli)
    assert f"--plugin {cli.folder / 'mine.py'}, as last time" in told
    assert "policy largest" in cli.start("--gpus", "2"), "a policy of last time is found in a file of last time"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "no such file"),
        ("import nowhere_at_all\n", "ModuleNotFoundError"),
        ("class\n", "SyntaxError"),
        ("raise SystemExit(0)\n", "ends the program"),
    ],
)
def test_a_file_of_last_time_that_is_of_no_use_is_one_line(cli: LiveCli, text: str | None, why: str) -> None:
    cli.start("--gpus", "1", "--plugin", "mine.py", "--policy", "fifo")
    _down(cli)
    mine = cli.folder / "mine.py"
    if text is None:
        mine.unlink()
    else:
        mine.write_text(text)
    call = cli("up")
    assert (call.code, call.out) == (2, "")
    assert call.err.count("\n") == 1
    for part in (str(mine), why, "that of last time", "--plugin none"):
        assert part in call.err
    assert not (cli.state / "daemon.json").exists()

    cli.start("--plugin", "none")
    assert "mine.py" not in _down(cli)
    cli.start()
    _down(cli)


@pytest.mark.parametrize(("text", "why"), [(None, "no such file"), ("1 / 0\n", "ZeroDivisionError")])
def test_a_file_that_is_given_and_of_no_use_leaves_nothing_behind(cli: LiveCli, text: str | None, why: str) -> None:
    if text is not None:
        (cli.folder / "own.py").write_text(text)
    for more in ((), ("--service",)):
        call = cli("up", "--gpus", "1", "--plugin", "mine.py", "--plugin", "own.py", *more)
        assert (call.code, call.out) == (2, "")
        assert "own.py" in call.err
        assert why in call.err
        assert "last time" not in call.err
        assert call.err.count("\n") == 1
        assert not cli.state.exists()
    assert cli("up", "--plugin", "none", "--plugin", "mine.py").code == 2


def test_the_policy_of_a_file_that_is_forgotten_has_to_be_replaced(cli: LiveCli) -> None:
    # In a process of its own: here, the policies of other tests are known.
    cli.start("--gpus", "1", "--plugin", "mine.py", "--policy", "largest")
    _down(cli)
    refused = cli.popen("up", "--plugin", "none")
    out, err = refused.communicate(timeout=60)
    assert (refused.returncode, out) == (2, "")
    assert "unknown policy 'largest'" in err
    assert "that of last time" in err
    assert "policy fifo" in cli.start("--plugin", "none", "--policy", "fifo")


def test_nobody_has_a_file_loaded_through_the_api(cli: LiveCli) -> None:
    cli.start("--gpus", "1", "--policy", "fifo")
    for words in (("policy", "set"), ("what-if", "--policy")):
        for name in ("largest", str(cli.folder / "mine.py"), "mine.py"):
            call = cli(*words, name)
            assert call.code == 2
            assert "unknown policy" in call.err


def test_a_service_is_told_where_the_file_is(cli: LiveCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairway.cli.service._has_systemd", lambda: False)
    call = cli("up", "--service", "--plugin", "mine.py", "--policy", "largest")
    assert call.code == 0, call.err
    assert f'"--plugin" "{cli.folder / "mine.py"}"' in call.out
    assert cli("up", "--service", "--policy", "nonsense").code == 2
    cli.start("--gpus", "1", "--plugin", "mine.py")
    call = cli("up", "--service", "--policy", "largest")
    assert call.code == 0, "the file of last time has this policy"
