"""Every registered policy keeps the contract; policies and engines that break it are found out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from broken_policies import BROKEN, Base, ByName

from fairway.core.action import Action
from fairway.core.errors import EngineError
from fairway.core.event import Event, JobFinished, JobStarted, JobSubmitted, Woken
from fairway.policies import make_policy, policies
from fairway.testing import InvariantError, check_policy, cluster, job
from fairway.testing.builders import submitted
from fairway.testing.harness import run_engine
from fairway.testing.seeds import ALL, quick, some

BLOCKS_AT_THE_HEAD = {"allox", "fifo", "capacity", "gavel_fifo"}
AVOIDS_INTERFERENCE = {"pollux", "sia"}
"""Policies that put at most one distributed job on a node, and rather leave GPUs idle."""
KNOBS = ["las:levels=100/1000/3333.3", "las:metric=time,levels=333.3", "proportional:quantum_s=33.3,by=user"]


@pytest.mark.parametrize("name", quick(policies()))
def test_every_registered_policy_keeps_the_contract(name: str) -> None:
    asked_elsewhere = name in some(sorted(policies()), 4)
    check_policy(
        name,
        seeds=some(range(4), 1),
        work_conserving=name not in BLOCKS_AT_THE_HEAD | AVOIDS_INTERFERENCE,
        other_processes=asked_elsewhere,
    )


@pytest.mark.parametrize("spec", KNOBS)
def test_policies_keep_the_contract_with_other_knobs(spec: str) -> None:
    check_policy(spec, seeds=range(10, 12), work_conserving=True, other_processes=ALL)


def test_instances_and_classes_are_checked_too() -> None:
    check_policy(make_policy("las:levels=50"), seeds=[1])
    check_policy(Base, seeds=[1], work_conserving=True)


@pytest.mark.parametrize("broken", list(BROKEN), ids=lambda cls: cls.name)
def test_a_broken_policy_is_found_out(broken: type[Base]) -> None:
    with pytest.raises(AssertionError, match=BROKEN[broken]):
        check_policy(broken, seeds=range(6))


def test_idle_gpus_are_a_breach_only_where_a_policy_promises_to_use_them() -> None:
    check_policy("fifo", seeds=[0])
    with pytest.raises(AssertionError, match="waits beside"):
        check_policy("fifo", seeds=[0], work_conserving=True)


def test_a_failure_names_the_command_that_repeats_it() -> None:
    with pytest.raises(AssertionError) as failure:
        check_policy(ByName, seeds=[3])
    text = str(failure.value)
    assert "python -m fairway.testing by-name --seed 3 --plugin" in text
    assert "broken_policies.py" in text


def test_the_command_exits_with_1_and_says_why(tmp_path: Path) -> None:
    plugin = tmp_path / "lifo_plugin.py"
    plugin.write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from fairway.core.admission import admit\n"
        "from fairway.policies import register\n"
        "@register\n"
        "@dataclass(frozen=True)\n"
        "class Late:\n"
        "    name: ClassVar[str] = 'late'\n"
        "    knows: ClassVar[frozenset] = frozenset()\n"
        "    round_s: ClassVar[float] = 0.0\n"
        "    def decide(self, snapshot):\n"
        "        return admit(snapshot, preempt=False).waking(0.0)\n"
    )
    command = [sys.executable, "-m", "fairway.testing", "late", "--seed", "1", "--plugin", str(plugin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is not after" in done.stderr
    good = subprocess.run(
        [sys.executable, "-m", "fairway.testing", "fifo", "--seed", "1"], capture_output=True, text=True
    )
    assert (good.returncode, good.stdout) == (0, "fifo: keeps the contract\n")


class _Script:
    """An engine that reports what a list says, whatever it is told to do."""

    def __init__(self, polls: list[list[Event]], enacts: list[list[Event]] | None = None) -> None:
        self.polls = polls
        self.enacts = enacts or []

    def poll(self, until_s: float) -> Sequence[Event]:
        return self.polls.pop(0) if self.polls else ()

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        return self.enacts.pop(0) if self.enacts else ()


def _announced(number: int = 0, at_s: float = 0.0) -> JobSubmitted:
    return submitted(job(f"job-{number}", 2, 50.0), number, cluster("v100:4"), at_s)


@pytest.mark.parametrize(
    ("polls", "enacts", "error"),
    [
        ([[JobFinished(0.0, 7)]], [], EngineError),
        ([[_announced()]], [[JobStarted(0.0, 3, 1.0, 0.0)]], EngineError),
        ([[_announced(0, 10.0)], [Woken(9.0)]], [], EngineError),
        ([[_announced()], [JobFinished(50.0, 0)], [JobFinished(50.0, 0)]], [], EngineError),
        ([[_announced(0)], [_announced(0)]], [], EngineError),
        ([[_announced(0)], [JobFinished(5.0, 0)], [_announced(0, 6.0)]], [], (EngineError, InvariantError)),
    ],
    ids=["unknown-job", "unknown-start", "time-goes-back", "finishes-twice", "submitted-twice", "comes-back"],
)
def test_a_broken_engine_is_found_out(
    polls: list[list[Event]], enacts: list[list[Event]], error: type[Exception] | tuple[type[Exception], ...]
) -> None:
    with pytest.raises(error):
        run_engine(_Script(polls, enacts), make_policy("fifo"), cluster("v100:4"))


def test_progress_that_falls_without_an_eviction_is_found_out() -> None:
    from fairway.core.event import RateChanged

    polls: list[list[Event]] = [[_announced()], [RateChanged(20.0, 0, 20.0, 1.0)], [RateChanged(30.0, 0, 5.0, 1.0)]]
    script = _Script(polls, [[JobStarted(0.0, 0, 1.0, 0.0)]])
    with pytest.raises(InvariantError, match="progress of job 0 fell"):
        run_engine(script, make_policy("fifo"), cluster("v100:4"))
