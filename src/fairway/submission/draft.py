"""A job being put together: what a file says, what the command line adds, and the request that results."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairway.core.errors import InputError
from fairway.runtime.jobs.request import JobRequest, checked
from fairway.submission.exported import EVERYTHING, Export, Exported, exported
from fairway.submission.quantities import Array, Gpus

Folder = Callable[[str], str]
"""Makes the name of a directory, as it is written in a file, a whole one."""


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

    `export` says which of the owner's environment variables go along. None is what the scheduler has as its default.
    """

    fields: Mapping[str, Any]
    array: Array | None = None
    export: Export | None = None
    remarks: tuple[str, ...] = field(default=())

    def upon(self, other: Draft) -> Draft:
        """This draft, with the fields that it lacks taken from another one."""
        return replace(other.over(self.fields, self.array), export=self.export, remarks=other.remarks + self.remarks)

    def over(self, fields: Mapping[str, Any], array: Array | None = None, export: Export | None = None) -> Draft:
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

    def exported(self, environment: Mapping[str, str]) -> Exported:
        """What it takes from the submitter's environment."""
        return exported(environment, self.export or EVERYTHING)

    def values(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """The fields of the request, unchecked, with what it takes from the submitter's environment."""
        fields = dict(self.fields)
        if gpus_vary(fields):
            # A range can only mean that the job is stopped and started again with another number.
            fields.setdefault("preempt", "checkpoint")
        told = _whole_array(self.array) if self.array is not None and fields.get("slurm_env") else {}
        env = {**self.exported(environment).variables, **told, **fields.pop("env", {})}
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
