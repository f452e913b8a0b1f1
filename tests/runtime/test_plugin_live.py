"""A policy of the operator's own decides about real jobs: given once, remembered, and refused in one line if gone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_house import CliHouse, house_in

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "my_policy.py"
WAITS = "while [ ! -e go ]; do sleep 0.1; done; echo $FAIRWAY_JOB_ID >> order"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CliHouse]:
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    yield from house_in(tmp_path)


def _down(house: CliHouse) -> str:
    """Stop the scheduler; what it had said on stderr."""
    assert house("down").code == 0
    assert house.daemon is not None
    return house.daemon.communicate(timeout=60)[1]


def test_the_example_decides_live_and_is_remembered(house: CliHouse) -> None:
    first = house.start("--gpus", "2", "--plugin", "mine.py", "--policy", "largest")
    assert "policy largest" in first
    head = house.submit("--gpus", "2", "--", "bash", "-c", WAITS)
    house.wait_for(head, "RUNNING")
    small, large = house.submit("--", "bash", "-c", WAITS), house.submit("--gpus", "2", "--", "bash", "-c", WAITS)
    asked = house("what-if", "--policy", "largest", "--json").json
    ends = {one["id"]: one["finish_in_s"] for one in asked["jobs"]}
    assert ends[large] < ends[small], "most GPUs first"
    assert house("policy", "set", "fifo").code == 0
    assert house("policy", "set", "largest").code == 0

    assert "as last time" not in _down(house)
    assert "policy largest" in house.start()
    (house.folder / "go").touch()
    for job in (head, large, small):
        assert house.wait_for(job, "COMPLETED")["attempts"] == 1
    assert (house.folder / "order").read_text().split() == [head, large, small]
    told = _down(house)
    assert f"--plugin {house.folder / 'mine.py'}, as last time" in told
    assert "policy largest" in house.start("--gpus", "2"), "a policy of last time is found in a file of last time"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "no such file"),
        ("import nowhere_at_all\n", "ModuleNotFoundError"),
        ("class\n", "SyntaxError"),
        ("raise SystemExit(0)\n", "ends the program"),
    ],
)
def test_a_file_of_last_time_that_is_of_no_use_is_one_line(house: CliHouse, text: str | None, why: str) -> None:
    house.start("--gpus", "1", "--plugin", "mine.py", "--policy", "fifo")
    _down(house)
    mine = house.folder / "mine.py"
    if text is None:
        mine.unlink()
    else:
        mine.write_text(text)
    call = house("up")
    assert (call.code, call.out) == (2, "")
    assert call.err.count("\n") == 1
    for part in (str(mine), why, "that of last time", "--plugin none"):
        assert part in call.err
    assert not (house.state / "daemon.json").exists()

    house.start("--plugin", "none")
    assert "mine.py" not in _down(house)
    house.start()
    _down(house)


@pytest.mark.parametrize(("text", "why"), [(None, "no such file"), ("1 / 0\n", "ZeroDivisionError")])
def test_a_file_that_is_given_and_of_no_use_leaves_nothing_behind(house: CliHouse, text: str | None, why: str) -> None:
    if text is not None:
        (house.folder / "own.py").write_text(text)
    for more in ((), ("--service",)):
        call = house("up", "--gpus", "1", "--plugin", "mine.py", "--plugin", "own.py", *more)
        assert (call.code, call.out) == (2, "")
        assert "own.py" in call.err
        assert why in call.err
        assert "last time" not in call.err
        assert call.err.count("\n") == 1
        assert not house.state.exists()
    assert house("up", "--plugin", "none", "--plugin", "mine.py").code == 2


def test_the_policy_of_a_file_that_is_forgotten_has_to_be_replaced(house: CliHouse) -> None:
    # In a process of its own: here, the policies of other tests are known.
    house.start("--gpus", "1", "--plugin", "mine.py", "--policy", "largest")
    _down(house)
    refused = house.popen("up", "--plugin", "none")
    out, err = refused.communicate(timeout=60)
    assert (refused.returncode, out) == (2, "")
    assert "unknown policy 'largest'" in err
    assert "that of last time" in err
    assert "policy fifo" in house.start("--plugin", "none", "--policy", "fifo")


def test_nobody_has_a_file_loaded_through_the_api(house: CliHouse) -> None:
    house.start("--gpus", "1", "--policy", "fifo")
    for words in (("policy", "set"), ("what-if", "--policy")):
        for name in ("largest", str(house.folder / "mine.py"), "mine.py"):
            call = house(*words, name)
            assert call.code == 2
            assert "unknown policy" in call.err


def test_a_service_is_told_where_the_file_is(house: CliHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairway.cli.service._has_systemd", lambda: False)
    call = house("up", "--service", "--plugin", "mine.py", "--policy", "largest")
    assert call.code == 0, call.err
    assert f'"--plugin" "{house.folder / "mine.py"}"' in call.out
    assert house("up", "--service", "--policy", "nonsense").code == 2
    house.start("--gpus", "1", "--plugin", "mine.py")
    call = house("up", "--service", "--policy", "largest")
    assert call.code == 0, "the file of last time has this policy"
