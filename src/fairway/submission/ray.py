"""RayJob files (`kind: RayJob` of KubeRay): the entrypoint is run on this machine, and clusters are left out.

`entrypointNumGpus` may be a fraction: it is then a share of one GPU, as for Ray.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairway.core.errors import InputError
from fairway.runtime.jobs.request import MOST_INT
from fairway.submission.draft import Draft, Folder, gpu_fields
from fairway.submission.quantities import LEAST_SHARE, Gpus
from fairway.submission.shell import run_text, typed
from fairway.submission.yaml_names import RAY_JOBS, RUNTIME_ENVIRONMENTS, left_out
from fairway.submission.yaml_text import yaml_documents

_TAKEN = frozenset(
    (
        *("entrypoint", "entrypointNumGpus", "entrypointNumCpus", "backoffLimit", "runtimeEnvYAML"),
        *("activeDeadlineSeconds", "suspend"),
    )
)
_STOCK_IMAGE = re.compile(r"(?:[\w.-]+/)*(?:rayproject|anyscale)/ray(?:-\w+)?(?:[:@].*)?")
"""Images that have Ray and nothing of the job's own."""


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
    remarks = left_out(spec, RAY_JOBS, _TAKEN, path, "spec.")
    for image in _images(spec.get("rayClusterSpec")):
        if not _STOCK_IMAGE.fullmatch(image):
            wish = "Install what it has on this machine, and take the image out"
            raise InputError(f"image {image[:100]}: Fairway starts jobs in no container. {wish}", path=str(path))
    gpus, more = _gpus(spec.get("entrypointNumGpus"), path)
    environment, others = _environment(spec.get("runtimeEnvYAML"), path, folder)
    fields: dict[str, Any] = {**gpu_fields(gpus), **environment}
    about = task.get("metadata")
    if isinstance(about, dict) and about.get("name") is not None:
        fields["name"] = str(about["name"])
    if spec.get("entrypointNumCpus") is not None:
        fields["cpus"] = _number(spec["entrypointNumCpus"], "entrypointNumCpus", path)
    if spec.get("activeDeadlineSeconds") is not None:
        fields["limit_s"] = _number(spec["activeDeadlineSeconds"], "activeDeadlineSeconds", path)
    if spec.get("suspend"):
        fields["hold"] = True
    if spec.get("backoffLimit") is not None:
        fields["retries"] = spec["backoffLimit"]
    fields["command"] = run_text(f"{entrypoint.rstrip()}\n", path.name)
    fields["shown"] = typed(str(path))
    return Draft(fields, remarks=(*remarks, *others, *more))


def _images(cluster: Any) -> Iterator[str]:
    """The images of all containers in the description of a cluster."""
    parts = cluster.values() if isinstance(cluster, dict) else cluster if isinstance(cluster, list) else ()
    if isinstance(cluster, dict) and isinstance(cluster.get("image"), str):
        yield cluster["image"]
    for part in parts:
        yield from _images(part)


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


def _environment(text: Any, path: Path, folder: Folder) -> tuple[dict[str, Any], list[str]]:
    """Variables and the directory of a runtime environment, and remarks."""
    if text is None:
        return {}, []
    found = yaml_documents(text, path, aliases=False, what="spec.runtimeEnvYAML") if isinstance(text, str) else []
    told = found[0] if len(found) == 1 else None
    variables = told.get("env_vars", {}) if isinstance(told, dict) else None
    if not isinstance(variables, dict) or not isinstance(told, dict):
        raise InputError("spec.runtimeEnvYAML must have named fields", path=str(path))
    fields: dict[str, Any] = {"env": {str(name): str(value) for name, value in variables.items()}}
    remarks = left_out(told, RUNTIME_ENVIRONMENTS, ("env_vars", "working_dir"), path, "spec.runtimeEnvYAML: ")
    where = told.get("working_dir")
    if where is not None and (not isinstance(where, str) or "://" in where):
        wish = "Only a directory can be used; fetch this one, and write its name"
        raise InputError(f"spec.runtimeEnvYAML: working_dir {str(where)[:100]}: {wish}", path=str(path))
    if isinstance(where, str):
        try:
            fields["cwd"] = folder(where)
        except InputError as error:
            raise InputError(f"spec.runtimeEnvYAML: working_dir: {error.message}", path=str(path)) from None
    return fields, remarks
