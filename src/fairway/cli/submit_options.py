"""The options of a job on the command line, and the job that they make together with a command or a file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from fairway.cli.options import flag, option, parameters_of
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.submission.draft import Draft
    from fairway.submission.quantities import Array

STDIN = "-"
_ANY_TYPE = "any"
"""As a GPU type: all types, also if a file names one."""


class Of(NamedTuple):
    """The field of a request that an option sets, and how its value is written. The help comes from the field."""

    field: str
    written: str = ""


def _value(metavar: str) -> Any:
    return typer.Option(metavar=metavar)


@dataclass(frozen=True)
class AskedTerms:
    """The terms of a job. What is not given has its default, or is what a file says."""

    gpus: Annotated[str | None, _value("N"), Of("gpus", "2, a100:2, the elastic range 1-4, or 0.5 of one GPU")] = None
    type: Annotated[list[str] | None, _value("TYPE"), Of("gpu_types", "may be repeated; any lifts those of a file")] = (
        None
    )
    memory: Annotated[str | None, _value("SIZE"), Of("memory_bytes", "512M or 16G")] = None
    mem: Annotated[str | None, _value("SIZE"), Of("host_memory_bytes", "512M or 16G")] = None
    cpus: Annotated[float | None, _value("N"), Of("cpus")] = None
    per_gpu: Annotated[
        bool, flag("--per-gpu", "Start the command once per GPU, with ranks as torchrun sets them"), Of("processes")
    ] = False
    executor: Annotated[str | None, _value("MODULE:FUNCTION"), Of("executor", "the words are its arguments")] = None
    name: Annotated[str | None, _value("NAME"), Of("name")] = None
    queue: Annotated[str | None, _value("NAME"), Of("queue")] = None
    priority: Annotated[int | None, _value("N"), Of("priority")] = None
    weight: Annotated[float | None, _value("W"), Of("weight")] = None
    time: Annotated[str | None, _value("T"), Of("limit_s", "2h, 1h30m or 1-12:00:00")] = None
    expect: Annotated[str | None, _value("T"), Of("expected_s", "2h, 1h30m or 1-12:00:00")] = None
    deadline: Annotated[str | None, _value("T"), Of("deadline_s", "6h, 18:00 or a date")] = None
    begin: Annotated[str | None, _value("T"), Of("begin_s", "30m, 18:00 or a date")] = None
    preempt: Annotated[str | None, _value("HOW"), Of("preempt", "suspend, checkpoint, restart or never")] = None
    grace: Annotated[str | None, _value("T"), Of("grace_s")] = None
    retries: Annotated[int | None, _value("N"), Of("retries")] = None
    hold: Annotated[bool, typer.Option("--hold"), Of("hold")] = False
    depends: Annotated[
        list[str] | None, _value("KIND:JOB"), Of("depends", "12, afterok:12, afterany:12:13 or afternotok:12")
    ] = None
    array: Annotated[
        str | None, option("--array", "One task per number: 0-9 or 1,3,5; 0-9%3 runs 3 at a time", "RANGE")
    ] = None
    env: Annotated[list[str] | None, _value("NAME=VALUE"), Of("env", "may be repeated")] = None
    export: Annotated[
        str | None,
        option("--export", "Your variables that it gets: ALL (the default), NONE, names, NAME=VALUE", "WHAT"),
    ] = None
    chdir: Annotated[str | None, _value("DIR"), Of("cwd", "the current one by default")] = None
    model: Annotated[str | None, _value("NAME"), Of("model")] = None
    batch_size: Annotated[int | None, _value("N"), Of("batch_size")] = None
    steps: Annotated[float | None, _value("N"), Of("steps")] = None
    epochs: Annotated[float | None, _value("N"), Of("epochs")] = None
    slurm_env: Annotated[bool, typer.Option("--slurm-env"), Of("slurm_env", "sbatch scripts always get them")] = False
    tty: Annotated[bool, typer.Option("--tty"), Of("tty")] = False
    user: Annotated[str | None, _value("NAME"), Of("user")] = None

    def fields(self, now: datetime) -> dict[str, Any]:
        """What was given, as fields of a request."""
        from fairway.core.units import duration_s, size_bytes
        from fairway.submission import quantities as q
        from fairway.submission.draft import gpu_fields

        readers: dict[str, Callable[[Any], Any]] = {
            "type": lambda names: () if [name.lower() for name in names] == [_ANY_TYPE] else tuple(names),
            "memory": size_bytes,
            "mem": size_bytes,
            "per_gpu": lambda _: "per_gpu",
            "time": duration_s,
            "expect": duration_s,
            "grace": duration_s,
            "begin": lambda text: q.instant_s(text, now),
            "deadline": lambda text: ahead_s(text, now),
            "depends": q.dependencies,
            "chdir": lambda text: str(Path(text).expanduser().resolve()),
            "env": lambda pairs: dict(map(q.variable, pairs)),
        }
        of = fields_of_options()
        said = {one: getattr(self, one) for one in of}
        given = {one: value for one, value in said.items() if not (value is None or value is False or value == [])}
        gpus = gpu_fields(q.gpus(given.pop("gpus"))) if "gpus" in given else {}
        if "type" in given and "gpu_types" in gpus:
            raise InputError("the GPU type is given twice, in --gpus and by --type")
        return gpus | {of[one].field: read(one, value, readers.get(one)) for one, value in given.items()}

    def tasks(self) -> Array | None:
        """The tasks of an array, if it is one."""
        from fairway.submission.quantities import array

        return None if self.array is None else array(self.array)


@cache
def fields_of_options() -> dict[str, Of]:
    """The options that set a field of a request."""
    hints = {one.name: one.annotation for one in parameters_of(AskedTerms)}
    return {name: about for name, hint in hints.items() for about in hint.__metadata__ if isinstance(about, Of)}


@cache
def option_names() -> dict[str, str]:
    """The option of each field, for errors."""
    return {about.field: f"--{name.replace('_', '-')}" for name, about in fields_of_options().items()}


class SchemaCommand(TyperCommand):
    """A command that may have options of a job. Their help is read from the request when it is asked for."""

    def get_help(self, ctx: Any) -> str:
        """The help; an option without one has that of its field."""
        for parameter in self.params:
            about = fields_of_options().get(parameter.name or "")
            if about is not None and not getattr(parameter, "help", None):
                parameter.help = _help(*about)  # type: ignore[attr-defined]
        return super().get_help(ctx)


_REMARKS = ("may be", "the current", "sbatch")
"""How a remark begins that is no example of a value."""


def _help(field: str, written: str) -> str:
    from fairway.runtime.jobs.request import JobTerms, description

    text, default = description(field), getattr(JobTerms, field, None)
    if written:
        text += f"{'; ' if written.startswith(_REMARKS) else ': '}{written}"
    if isinstance(default, int | float) and default:
        text += f". Default: {default:g}" + " s" * field.endswith("_s")
    elif field == "preempt":
        text += f". Default: {default}"
    return text[0].upper() + text[1:]


def read(option: str, value: Any, reader: Callable[[Any], Any] | None) -> Any:
    """The value of an option; errors name the option."""
    try:
        return value if reader is None else reader(value)
    except InputError as error:
        raise InputError(f"--{option}: {error.message}") from None


def ahead_s(text: str, now: datetime) -> float:
    """A deadline, given as a duration or a date, in seconds from now; `InputError` if it is past."""
    from fairway.submission.quantities import instant_s

    left_s = instant_s(text, now) - now.timestamp()
    if left_s <= 0:
        raise InputError(f"{text!r} is past")
    return left_s


def draft_of(words: Sequence[str], asked: AskedTerms, *, literal: bool) -> Draft:
    """The job that is meant: a file in another scheduler's format, a torchrun command, or any other command.

    `literal`: the words stood after `--`, so they are a command whatever they look like.
    """
    from fairway.submission.draft import Draft
    from fairway.submission.exported import export_of
    from fairway.submission.torchrun import from_torchrun, is_torchrun

    now = datetime.now().astimezone()
    given = asked.fields(now)
    if not words and not asked.executor:
        raise InputError("there is no command; give one after --, or an sbatch script or a task file")
    draft = None if literal or asked.executor else _from_file(words, given, now)
    if asked.executor:
        draft = Draft({"command": ("python3", *words), "shown": shlex.join((asked.executor, *words))})
    elif draft is None:
        draft = from_torchrun(words, given) if is_torchrun(words) else Draft({"command": tuple(words)})
    export, values = (None, {}) if asked.export is None else read("export", asked.export, export_of)
    made = draft.upon(Draft({"cwd": _here(given)})).over({"env": values}, export=export)
    return made.over(given, asked.tasks())


def _here(given: Mapping[str, Any]) -> str:
    """The directory of a job that names none."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        if "cwd" in given:
            return "/"
        raise InputError("the current directory does not exist any more; give another one with --chdir") from None


def is_task_file(word: str) -> bool:
    """Whether a word that is no option names a SkyPilot task or a RayJob."""
    return word.endswith((".yaml", ".yml"))


def _from_file(words: Sequence[str], given: Mapping[str, Any], now: datetime) -> Draft | None:
    """A job that a file describes; None if the first word is no such file."""
    import shutil
    import sys

    from fairway.submission.sbatch import from_sbatch, from_sbatch_text, is_sbatch
    from fairway.submission.skypilot import from_task_file

    path, arguments = Path(words[0]), words[1:]
    if words[0] == STDIN:
        return from_sbatch_text(sys.stdin.read(), arguments, now)
    if is_task_file(words[0]):
        if not path.is_file():
            raise InputError("there is no such file", path=str(path))
        return from_task_file(path, arguments, given.get("env", {}))
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
