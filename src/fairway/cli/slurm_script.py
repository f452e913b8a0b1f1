"""`fairway slurm-script`: a job script for Slurm, inside which Fairway schedules over all nodes of the allocation."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from fairway.cli.options import flag, option, takes
from fairway.cli.up import UpOptions
from fairway.core.errors import InputError
from fairway.core.units import duration_s

MARGIN_S = 300.0
"""How long before the time limit jobs are asked to save and stop, unless the user says otherwise."""
MOST_NODES = 100_000
_WHOLE_NODES_UNLESS = ("--cpus-per-task", "-c", "--cpus-per-gpu", "--mincpus", "--exclusive", "--oversubscribe", "-s")
_OURS = {
    **dict.fromkeys(("-N", "--nodes"), "-N"),
    **dict.fromkeys(("-t", "--time"), "--time"),
    **dict.fromkeys(("-p", "--partition"), "--partition"),
    **dict.fromkeys(("-A", "--account"), "--account"),
    "--gpus-per-node": "--gpus-per-node",
}
"""Options of sbatch that are options of this command, too."""
_TAKEN = (
    "--signal",
    "--ntasks",
    "-n",
    "--ntasks-per-node",
    "--array",
    "-a",
    "--wrap",
    "--no-kill",
    "-k",
    "--test-only",
)
"""Options of sbatch without which, or with other values of which, a pilot would not work."""


@dataclass(frozen=True)
class PilotOptions:
    """What a pilot asks Slurm for."""

    nodes: Annotated[int, typer.Option("-N", "--nodes", help="How many nodes", metavar="N", min=1, max=MOST_NODES)]
    gpus_per_node: Annotated[
        str | None,
        option("--gpus-per-node", "GPUs of each node. Default: whole nodes, as Slurm gives them", "[TYPE:]N"),
    ] = None
    time: Annotated[str | None, option("--time", "The time limit. Default: the partition's", "T")] = None
    margin: Annotated[
        str | None,
        option("--margin", "How long before the time limit jobs are asked to save and stop. Default: 5m", "T"),
    ] = None
    partition: Annotated[str | None, option("--partition", "The partition of Slurm", "NAME")] = None
    account: Annotated[str | None, option("--account", "The account of Slurm", "NAME")] = None
    again: Annotated[
        bool, flag("--again", "At the time limit submit the next pilot, if jobs are left. It goes on with them")
    ] = False

    def directives(self, jobs: Path, more: Sequence[str]) -> list[list[str]]:
        """The options of sbatch; each is a line of the script. `more` are the user's own.

        Of all pilots with one name Slurm runs one at a time, and so the name has the directory `jobs`.
        """
        margin_s, limit_s = _seconds("--margin", self.margin) or MARGIN_S, _seconds("--time", self.time)
        if limit_s is not None and limit_s <= margin_s:
            raise InputError(f"--time {self.time} is not longer than the --margin of {margin_s:g} s before its end")
        named = {
            "job-name": f"fairway{re.sub('[^a-zA-Z0-9._-]', '-', str(jobs))}",
            "dependency": "singleton",
            "nodes": str(self.nodes),
            "ntasks-per-node": "1",
            "time": None if limit_s is None else _clock(limit_s),
            "gpus-per-node": _gpus(self.gpus_per_node),
            "partition": self.partition,
            "account": self.account,
            "signal": f"B:USR1@{math.ceil(margin_s)}",
            "output": "fairway-%j.log",
        }
        for name in ("partition", "account"):
            if named[name] == "":
                raise InputError(f"--{name}: must not be empty")
        own = _lines(more)
        flags = ["--open-mode=append", "--no-kill", "--requeue"]
        if not any(_name(line[0]) in _WHOLE_NODES_UNLESS for line in own):
            flags.append("--exclusive")
        return [[f"--{name}={value}"] for name, value in named.items() if value is not None] + [
            *([one] for one in flags),
            *own,
        ]


@dataclass(frozen=True)
class PilotUpOptions(UpOptions):
    """How to run the scheduler inside a pilot."""

    state: Annotated[
        str | None,
        option("--state", "A local disk of the first node, for the journal while the pilot runs. Default: /tmp", "DIR"),
    ] = None
    engine: Annotated[str | None, typer.Option("--engine", hidden=True)] = None
    jobs: Annotated[
        str | None,
        option(
            "--jobs",
            "A directory that all nodes share, for logs and checkpoints, and for what a pilot leaves to the next one. "
            "Default: ~/fairway",
            "DIR",
        ),
    ] = None


@takes(pilot=PilotOptions, settings=PilotUpOptions)
def slurm_script(
    pilot: PilotOptions,
    settings: PilotUpOptions,
    sbatch: Annotated[
        list[str] | None, typer.Argument(help="More options of sbatch, after --", metavar="[-- SBATCH_OPTION…]")
    ] = None,
) -> None:
    """Print a script for sbatch: a pilot, inside which Fairway schedules over all nodes of its allocation.

    All nodes run Ray, and the first one runs `fairway up`. Both are started again when they die. Before the time limit
    all jobs save and stop, and the next pilot with the same --jobs goes on with them. Options of `fairway up` are
    passed on to it.

    \b
    fairway slurm-script -N 4 --jobs /shared/fairway > pilot.sh
    sbatch pilot.sh
    /shared/fairway/pilot/fairway submit --gpus 16 --per-gpu -- python train.py
    fairway slurm-script -N 4 --time 1d --again --jobs /shared -- -q long > p.sh
    """
    from fairway.cli.pilot_script import Pilot, script
    from fairway.runtime.daemon.settings import NONE

    if settings.engine is not None:
        raise InputError("--engine: inside a pilot it is always Ray")
    if settings.jobs in ("", NONE):
        raise InputError("--jobs: a pilot needs a directory that all nodes share")
    settings.check()
    jobs = Path(settings.jobs or "~/fairway").expanduser().absolute()
    made = Pilot(
        directives=pilot.directives(jobs, sbatch or ()),
        jobs=str(jobs),
        state=str(Path(settings.state or "/tmp").absolute()),
        python=sys.executable,
        up=replace(settings, state=None, jobs=None).words(),
        again=pilot.again,
    )
    typer.echo(script(made), nl=False)


def _seconds(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found_s = duration_s(text)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if not 1 <= found_s <= 366 * 86400:
        raise InputError(f"{name} {text} is not from 1 s to a year")
    return found_s


def _clock(seconds: float) -> str:
    """A duration as Slurm writes it."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours // 24}-{hours % 24:02}:{minutes:02}:{rest:02}"


def _gpus(text: str | None) -> str | None:
    """The GPUs of a node as sbatch takes them: `8` or `a100:8`."""
    if text is None:
        return None
    kind, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdecimal() and 0 < int(number) <= 1000) or (":" in text and not kind):
        raise InputError(f"--gpus-per-node {text!r} is not a number of GPUs, such as 8 or a100:8")
    return text


def _name(word: str) -> str:
    """The name of the option that a word begins with."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def _lines(words: Sequence[str]) -> list[list[str]]:
    """The user's own options of sbatch, each with its value."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("-") and len(word) > 1:
            lines.append([word])
        elif lines and len(lines[-1]) == 1 and "=" not in lines[-1][0]:
            lines[-1].append(word)
        else:
            raise InputError(f"{word!r} after -- is not an option of sbatch, such as --qos=long")
    for line in lines:
        name = _name(line[0])
        if name in _OURS:
            raise InputError(f"{line[0]} after --: write {_OURS[name]} before it")
        if name in _TAKEN:
            raise InputError(f"{line[0]} after --: the pilot sets this itself")
    return lines
