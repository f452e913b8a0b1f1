"""What is asked of a job on the command line: its options, and the job that comes of them and of a command or file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fairway.cli.options import flag, option
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.submission.draft import Draft
    from fairway.submission.quantities import Array

STDIN = "-"


@dataclass(frozen=True)
class Asked:
    """The terms of a job. What is not given has its default, or is what a file says."""

    gpus: Annotated[
        str | None, option("--gpus", "How many: 2, a100:2, or the elastic range 1-4; 1 unless told", "N")
    ] = None
    type: Annotated[list[str] | None, option("--type", "Only on GPUs of this type; repeat it for several", "TYPE")] = (
        None
    )
    memory: Annotated[str | None, option("--memory", "Memory that it needs on each GPU, such as 16G", "SIZE")] = None
    per_gpu: Annotated[bool, flag("--per-gpu", "Start the command once per GPU, with ranks as torchrun has them")] = (
        False
    )
    name: Annotated[str | None, option("--name", "A name for the job", "NAME")] = None
    queue: Annotated[str | None, option("--queue", "The queue, as the configuration knows it", "NAME")] = None
    priority: Annotated[
        int | None, option("--priority", "The higher, the sooner; 0 unless told, negative is opportunistic", "N")
    ] = None
    weight: Annotated[float | None, option("--weight", "Its share beside others, for policies that share; 1", "W")] = (
        None
    )
    time: Annotated[str | None, option("--time", "The longest that it may run, such as 2h or 1-12:00:00", "T")] = None
    expect: Annotated[str | None, option("--expect", "How long it will probably run", "T")] = None
    deadline: Annotated[str | None, option("--deadline", "When it has to be done: 6h, 18:00 or a date", "T")] = None
    begin: Annotated[str | None, option("--begin", "Not before: 30m, 18:00 or a date", "T")] = None
    preempt: Annotated[
        str | None,
        option("--preempt", "How its GPUs may be taken: suspend (default), checkpoint, restart, never", "HOW"),
    ] = None
    grace: Annotated[
        str | None, option("--grace", "How long it may take to stop when asked to; 60 s unless told", "T")
    ] = None
    retries: Annotated[
        int | None, option("--retries", "How often it is tried again after a failure; 0 unless told", "N")
    ] = None
    hold: Annotated[bool, flag("--hold", "Do not start it before `fairway release`")] = False
    depends: Annotated[
        list[str] | None,
        option("--depends", "Wait for others: afterok:12 or just 12, afterany:12:13, afternotok:12", "KIND:JOB"),
    ] = None
    array: Annotated[str | None, option("--array", "A job per number: 0-9, 1,3,5, 0-9%3 for 3 at a time", "RANGE")] = (
        None
    )
    env: Annotated[list[str] | None, option("--env", "A variable for it; may be repeated", "NAME=VALUE")] = None
    export: Annotated[
        str | None, option("--export", "What it gets of your environment: paths (default), all, none, or names", "WHAT")
    ] = None
    chdir: Annotated[str | None, option("--chdir", "Where it runs; here unless told", "DIR")] = None
    model: Annotated[str | None, option("--model", "What it trains, for estimates from others like it", "NAME")] = None
    batch_size: Annotated[int | None, option("--batch-size", "Its batch size", "N")] = None
    steps: Annotated[float | None, option("--steps", "How many steps it takes", "N")] = None
    epochs: Annotated[float | None, option("--epochs", "How many epochs it takes", "N")] = None
    slurm_env: Annotated[
        bool, flag("--slurm-env", "Set SLURM_ variables, too; scripts for sbatch have them anyway")
    ] = False
    user: Annotated[str | None, option("--user", "For somebody else; operators only", "NAME")] = None

    def fields(self, now: datetime) -> dict[str, Any]:
        """What was given, as fields of a request."""
        from fairway.submission import quantities as q

        plain = ("name", "queue", "priority", "weight", "preempt", "retries", "model", "batch_size", "steps", "epochs")
        given: dict[str, Any] = {name: getattr(self, name) for name in (*plain, "user")}
        for name, text in (("limit_s", self.time), ("expected_s", self.expect), ("grace_s", self.grace)):
            given[name] = None if text is None else q.duration_s(text)
        given["memory_bytes"] = None if self.memory is None else q.memory_bytes(self.memory)
        given["begin_s"] = None if self.begin is None else q.instant_s(self.begin, now)
        given["deadline_s"] = None if self.deadline is None else ahead_s(self.deadline, now)
        given["depends"] = q.dependencies(self.depends) if self.depends else None
        given["cwd"] = None if self.chdir is None else str(Path(self.chdir).expanduser().resolve())
        given["env"] = dict(map(q.variable, self.env)) if self.env else None
        given["processes"] = "per_gpu" if self.per_gpu else None
        for name in ("hold", "slurm_env"):
            given[name] = getattr(self, name) or None
        given |= self._gpu_fields()
        return {name: value for name, value in given.items() if value is not None}

    def tasks(self) -> Array | None:
        """The tasks of an array, if it is one."""
        from fairway.submission.quantities import array

        return None if self.array is None else array(self.array)

    def _gpu_fields(self) -> dict[str, Any]:
        from fairway.submission.draft import gpu_fields
        from fairway.submission.quantities import gpus

        fields = {} if self.gpus is None else gpu_fields(gpus(self.gpus))
        if self.type:
            if "gpu_types" in fields:
                raise InputError("the GPU type is given twice, in --gpus and by --type")
            fields["gpu_types"] = tuple(self.type)
        return fields


def ahead_s(text: str, now: datetime) -> float:
    """A deadline, which is a duration or a date, as seconds from now on; `InputError` if it is past."""
    from fairway.submission.quantities import instant_s

    left_s = instant_s(text, now) - now.timestamp()
    if left_s <= 0:
        raise InputError(f"the deadline {text!r} is past")
    return left_s


def draft_of(words: Sequence[str], asked: Asked, *, literal: bool) -> Draft:
    """The job that is meant: a file in another scheduler's format, a torchrun command, or any other command.

    `literal`: the words stood after `--`, so they are a command whatever they look like.
    """
    from fairway.submission.draft import Draft
    from fairway.submission.torchrun import from_torchrun, is_torchrun

    now = datetime.now().astimezone()
    given = asked.fields(now)
    if not words:
        raise InputError("there is no command; give one after --, or an sbatch script or a task file")
    draft = None if literal else _from_file(words, given, now)
    if draft is None:
        draft = from_torchrun(words, given) if is_torchrun(words) else Draft({"command": tuple(words)})
    return draft.upon(Draft({"cwd": _here(given)})).over(given, asked.tasks(), asked.export)


def _here(given: Mapping[str, Any]) -> str:
    """Where a job runs that is not told otherwise."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        if "cwd" in given:
            return "/"
        raise InputError("the present directory does not exist any more; give another with --chdir") from None


def is_task_file(word: str) -> bool:
    """Whether a word that is no option names a SkyPilot task."""
    return word.endswith((".yaml", ".yml"))


def _from_file(words: Sequence[str], given: Mapping[str, Any], now: datetime) -> Draft | None:
    """A job that a file describes; None if the first word is no such file."""
    import shutil
    import sys

    from fairway.submission.sbatch import from_sbatch, from_sbatch_text, is_sbatch
    from fairway.submission.skypilot import from_skypilot

    path, arguments = Path(words[0]), words[1:]
    if words[0] == STDIN:
        return from_sbatch_text(sys.stdin.read(), arguments, now)
    if is_task_file(words[0]):
        if not path.is_file():
            raise InputError("there is no such file", path=str(path))
        return from_skypilot(path, arguments, given.get("env", {}))
    if not path.is_file():
        if path.suffix in (".sbatch", ".slurm"):
            raise InputError("there is no such file", path=str(path))
        if path.is_dir() and shutil.which(words[0]) is None:
            raise InputError("this is a directory; give a command, an sbatch script or a task file", path=str(path))
        return None
    if os.access(path, os.X_OK) and not _is_script(path):
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    if is_sbatch(text):
        return from_sbatch(path, arguments, now)
    if os.access(path, os.X_OK):
        return None
    raise InputError("this file has no #SBATCH lines; to run it, put the command after --", path=str(path))


def _is_script(path: Path) -> bool:
    """Whether a file begins like a script, so that there is any use in reading it."""
    with path.open("rb") as file:
        return file.read(2) == b"#!"
