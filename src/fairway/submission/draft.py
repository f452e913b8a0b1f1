"""A job being put together: what a file says, what the command line adds, and the request that results."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairway.core.errors import InputError
from fairway.runtime.jobs.request import JobRequest, checked
from fairway.submission.quantities import Array, Gpus

_CARRIED = (
    "PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LANG",
    "LC_ALL",
    "TZ",
    "TOKENIZERS_PARALLELISM",
)
"""What a command needs to be found again, and what training reads. Other variables do not go along."""
_CARRIED_PREFIXES = ("WANDB_", "HF_", "OMP_", "NCCL_", "CUDA_", "TORCH_", "PYTORCH_")
"""Variables of training libraries; they go along, too."""
Folder = Callable[[str], str]
"""Makes the name of a directory, as it is written in a file, a whole one."""
USUAL = "usual"
"""Which variables go along unless `--export` says otherwise: the two lists above."""
_NOT_CARRIED = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_")
"""How names begin of what a job gets from the scheduler instead."""


def local_folder(text: str) -> str:
    """A directory of the machine and the user that submit."""
    return str(Path(text).expanduser().resolve())


def far_folder(text: str) -> str:
    """A directory of another machine or user. Nothing is looked up here, so it must be a whole name."""
    if not text.startswith("/"):
        raise InputError(f"{text[:60]!r} does not begin with /; from here, directories need their whole names")
    return os.path.normpath(text)


@dataclass(frozen=True)
class Draft:
    """Fields of a request, as far as they are known, and remarks for its owner.

    `export` says which of the owner's environment variables go along: "usual" (paths, and those of training
    libraries), "all", "none", or names with commas.
    """

    fields: Mapping[str, Any]
    array: Array | None = None
    export: str = USUAL
    remarks: tuple[str, ...] = field(default=())

    def upon(self, other: Draft) -> Draft:
        """This draft, with the fields that it lacks taken from another one."""
        return replace(other.over(self.fields, self.array), export=self.export, remarks=other.remarks + self.remarks)

    def over(self, fields: Mapping[str, Any], array: Array | None = None, export: str | None = None) -> Draft:
        """The same draft with other fields, which take precedence; environments are joined."""
        joined = {**self.fields, **{name: value for name, value in fields.items() if name != "env"}}
        env = {**self.fields.get("env", {}), **fields.get("env", {})}
        if env:
            joined["env"] = env
        return replace(self, fields=joined, array=array or self.array, export=export or self.export)

    def request(self, environment: Mapping[str, str], names: Mapping[str, str] | None = None) -> JobRequest:
        """The checked request, with what it takes from the submitter's environment.

        Errors use `names` for the fields that have one there.
        """
        return checked(JobRequest, self.values(environment), names)

    def values(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """The fields of the request, unchecked, with what it takes from the submitter's environment."""
        fields = dict(self.fields)
        if gpus_vary(fields):
            # A range can only mean that the job is stopped and started again with another number.
            fields.setdefault("preempt", "checkpoint")
        told = _whole_array(self.array) if self.array is not None and fields.get("slurm_env") else {}
        env = {**carried(environment, self.export), **told, **fields.pop("env", {})}
        return fields | {"env": env}


def _whole_array(array: Array) -> dict[str, str]:
    """What Slurm tells the tasks of an array about all of them."""
    told = {"COUNT": len(array.tasks), "MIN": min(array.tasks), "MAX": max(array.tasks)}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in told.items()}


def gpus_vary(fields: Mapping[str, Any]) -> bool:
    """Whether an elastic range was asked for."""
    return bool(fields.get("gpus_min", 0) != fields.get("gpus_max", 0))


def gpu_fields(asked: Gpus) -> dict[str, Any]:
    """A number or range of GPUs, or a share of one, as fields of a request.

    A range begins with its minimum, so that the job can start.
    """
    fields: dict[str, Any] = {"gpus": asked.least, "gpus_min": asked.least, "gpus_max": asked.most}
    fields["gpu_share"] = asked.share
    if asked.type:
        fields["gpu_types"] = (asked.type,)
    return fields


def carried(environment: Mapping[str, str], export: str) -> dict[str, str]:
    """The part of the owner's environment that a job gets."""
    if export == "none":
        return {}
    if export == "all":
        return {name: value for name, value in environment.items() if _is_sound(name, value)}
    if export == USUAL:
        return {name: value for name, value in environment.items() if name in _CARRIED or _is_training(name, value)}
    names = tuple(name.strip() for name in export.split(","))
    for name in filter(None, names):
        if not (name.isidentifier() and name.isascii()):
            raise InputError(f"--export: {name!r} is not the name of a variable; write {USUAL}, all, none or names")
    return {name: environment[name] for name in names if name in environment}


def _is_training(name: str, value: str) -> bool:
    """Whether a variable is one of a training library."""
    training = name.startswith(_CARRIED_PREFIXES) and not name.startswith(_NOT_CARRIED)
    return training and _is_sound(name, value)


def _is_sound(name: str, value: str) -> bool:
    """Whether a variable may go along: no exported shell functions, no variables of Fairway's own, only text."""
    return (
        name.isidentifier()
        and name.isascii()
        and not name.startswith(("FAIRWAY_", "SLURM_"))
        and "\0" not in value
        and not any("\ud800" <= each <= "\udfff" for each in value)
    )
