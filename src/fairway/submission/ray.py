"""RayJob files (`kind: RayJob` of KubeRay): the entrypoint is run on this machine, and clusters are left out.

`entrypointNumGpus` may be a fraction: it is then a share of one GPU, as for Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairway.core.errors import InputError
from fairway.runtime.jobs.request import MOST_INT
from fairway.submission.draft import Draft, Folder, gpu_fields
from fairway.submission.quantities import LEAST_SHARE, Gpus
from fairway.submission.shell import run_text, typed
from fairway.submission.yaml_text import yaml_documents

_TAKEN = frozenset(("entrypoint", "entrypointNumGpus", "entrypointNumCpus", "backoffLimit", "runtimeEnvYAML"))


def is_ray(task: Mapping[str, Any]) -> bool:
    """Whether a YAML file describes a Ray job."""
    return task.get("kind") == "RayJob"


def from_ray(path: Path, task: Mapping[str, Any], folder: Folder) -> Draft:
    """The job that a RayJob describes. `folder` makes names of directories whole."""
    spec = task.get("spec")
    if not isinstance(spec, dict):
        raise InputError("spec must have named fields", path=str(path))
    entrypoint = spec.get("entrypoint")
    if not isinstance(entrypoint, str) or not entrypoint.strip():
        raise InputError("spec.entrypoint: there is nothing to run", path=str(path))
    remarks = [f"{path}: spec.{name} has no meaning here and was left out" for name in spec if name not in _TAKEN]
    gpus, more = _gpus(spec.get("entrypointNumGpus"), path)
    fields: dict[str, Any] = {**gpu_fields(gpus), **_environment(spec.get("runtimeEnvYAML"), path, folder)}
    about = task.get("metadata")
    if isinstance(about, dict) and about.get("name") is not None:
        fields["name"] = str(about["name"])
    if spec.get("entrypointNumCpus") is not None:
        fields["cpus"] = _number(spec["entrypointNumCpus"], "entrypointNumCpus", path)
    if spec.get("backoffLimit") is not None:
        fields["retries"] = spec["backoffLimit"]
    fields["command"] = run_text(f"{entrypoint.rstrip()}\n", path.name)
    fields["shown"] = typed(str(path))
    return Draft(fields, remarks=(*remarks, *more))


def _gpus(asked: Any, path: Path) -> tuple[Gpus, list[str]]:
    if asked is None:
        return Gpus(1, 1), [f"{path}: spec.entrypointNumGpus is missing; the job gets 1 GPU"]
    number = _number(asked, "entrypointNumGpus", path)
    if number.is_integer() and number >= 1:
        return Gpus(int(number), int(number)), []
    if not LEAST_SHARE <= number < 1:
        raise InputError(
            f"spec.entrypointNumGpus: {asked!r} is neither a whole number of GPUs nor a share of one", path=str(path)
        )
    return Gpus(1, 1, share=number), []


def _number(value: Any, name: str, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_INT:
        raise InputError(f"spec.{name}: {str(value)[:60]!r} is not a number from 0", path=str(path))
    return float(value)


def _environment(text: Any, path: Path, folder: Folder) -> dict[str, Any]:
    """Variables and the directory of a runtime environment."""
    if text is None:
        return {}
    found = yaml_documents(text, path, aliases=False, what="spec.runtimeEnvYAML") if isinstance(text, str) else []
    told = found[0] if len(found) == 1 else None
    variables = told.get("env_vars", {}) if isinstance(told, dict) else None
    if not isinstance(variables, dict) or not isinstance(told, dict):
        raise InputError("spec.runtimeEnvYAML must have named fields", path=str(path))
    fields: dict[str, Any] = {"env": {str(name): str(value) for name, value in variables.items()}}
    where = told.get("working_dir")
    if isinstance(where, str) and "://" not in where:
        try:
            fields["cwd"] = folder(where)
        except InputError as error:
            raise InputError(f"spec.runtimeEnvYAML: working_dir: {error.message}", path=str(path)) from None
    return fields
