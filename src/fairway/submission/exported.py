"""Which variables of the submitter's shell a job gets: all of them, as with sbatch, unless `--export` says otherwise.

Some describe the process that submits, and not the work: its place in a group of ranks or in another job, its terminal,
its login session. These go along only if `--export` names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fairway.core.errors import InputError
from fairway.runtime.jobs.request import MOST_TEXT
from fairway.submission.quantities import variable

_OF_RANKS = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"),
)
_OF_LAUNCHERS = ("MASTER_", "TORCHELASTIC_", "CUDA_MPS_", "FAIRWAY_", "SLURM_", "OMPI_COMM_", "PMI_", "PMIX_")
"""How names begin of what launchers and schedulers set."""
_OF_THE_SHELL = (
    *("_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "GPG_TTY", "WINDOWID", "TERM_SESSION_ID"),
    *("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "TMUX", "TMUX_PANE", "STY", "WINDOW"),
    *("XDG_SESSION_ID", "INVOCATION_ID", "JOURNAL_STREAM"),
)
"""What is different in every shell, and useless when that has ended. Jobs would not share their environments either."""
_MOST_EXPORTED, _MOST_EXPORTED_BYTES = 900, 512 * 1024
"""The most variables that go along unnamed, and their bytes. A request may have 1,024 variables, and 1 MiB."""
_MOST_LISTED = 8


class Export(NamedTuple):
    """Which variables go along: `everything` but those of ranks, launchers and the shell itself, and these `names`."""

    everything: bool
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As it is written."""
        return ",".join((*(["ALL"] * self.everything), *self.names)) or "NONE"


EVERYTHING, NOTHING = Export(True), Export(False)


def export_of(text: str) -> tuple[Export, dict[str, str]]:
    """What `--export` says: `ALL`, `NONE`, names, and names with values, with commas between them."""
    everything, names, values = False, [], {}
    for part in (one.strip() for one in text.split(",")):
        if part.upper() == "ALL":
            everything = True
        elif "=" in part:
            name, value = variable(part)
            values[name] = value
        elif part and part.upper() not in ("NONE", "NIL"):
            if not (part.isidentifier() and part.isascii()):
                raise InputError(f"{part!r} is not the name of a variable. Write ALL, NONE, names or NAME=VALUE")
            names.append(part)
    return Export(everything, tuple(names)), values


class Exported(NamedTuple):
    """The variables that go along, and what to tell the submitter about others."""

    variables: dict[str, str]
    remarks: tuple[str, ...] = ()


def exported(environment: Mapping[str, str], export: Export) -> Exported:
    """The part of the submitter's environment that a job gets.

    A variable that was named and cannot go along is an error. One that was not is left out with a remark.
    """
    named = {name: environment[name] for name in export.names if name in environment}
    for name, value in named.items():
        if _size(name, value) > MOST_TEXT:
            raise InputError(f"--export: {name} is larger than {MOST_TEXT:,} bytes. Put it into a file")
        if not _is_text(value):
            raise InputError(f"--export: {name} is not UTF-8. Put it into a file")
    if not export.everything:
        return Exported(named)
    rest = {name: value for name, value in environment.items() if name not in named and _is_for_jobs(name)}
    # If there is too much, the largest ones stay behind.
    left, room, places = list[str](), _MOST_EXPORTED_BYTES, _MOST_EXPORTED
    for name in sorted(rest, key=lambda one: (_size(one, rest[one]), one)):
        size = _size(name, rest[name])
        if size > min(room, MOST_TEXT) or not places or not _is_text(rest[name]):
            left.append(name)
            continue
        room, places = room - size, places - 1
    taken = {name: value for name, value in rest.items() if name not in left}
    return Exported({**taken, **named}, _remarks(left))


def _remarks(left: list[str]) -> tuple[str, ...]:
    if not left:
        return ()
    more = f" and {len(left) - _MOST_LISTED} more" if len(left) > _MOST_LISTED else ""
    names = ", ".join(sorted(left)[:_MOST_LISTED])
    return (f"the job does not get {names}{more} of your environment: too large, too many, or not UTF-8",)


def _is_for_jobs(name: str) -> bool:
    """Whether a variable goes along without being named. Functions of a shell, whose names have `%`, do not."""
    own = name in _OF_RANKS or name in _OF_THE_SHELL or name.startswith(_OF_LAUNCHERS)
    return name.isidentifier() and name.isascii() and not own


def _size(name: str, value: str) -> int:
    """The bytes of a variable as programs are given it."""
    return len(name) + len(value.encode(errors="surrogateescape")) + 2


def _is_text(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= each <= "\udfff" for each in value)
