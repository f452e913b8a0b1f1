"""The fields of SkyPilot tasks and RayJobs that do not become terms of a job: refused, or left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fairway.core.errors import InputError
from fairway.runtime.processes.foreign import ForeignNames

_CLOUD = "it is about clouds"
_CLUSTER = "it is about the cluster of Kubernetes"
_NO_DATA = "Fairway copies and mounts no data. Put the files where the job looks for them, and take this out"
_NO_PACKAGES = "Fairway installs nothing. Install it in the environment that the job runs in, and take this out"

TASKS = ForeignNames(
    refused={
        "file_mounts": _NO_DATA,
        "storage_mounts": _NO_DATA,
        "storage": _NO_DATA,
        "volumes": _NO_DATA,
        "service": "Fairway runs jobs, not services with replicas. Take it out to run the task once",
        "pool": "Fairway has no pools of workers. Submit an array: `fairway submit --array 0-9`",
    },
    left_out=dict.fromkeys(
        (
            "config",
            "experimental",
            "event_callback",
            "inputs",
            "outputs",
            "num_jobs",
            "estimator",
            "user_specified_yaml",
        ),
        _CLOUD,
    ),
)
"""The fields of a SkyPilot task."""
RESOURCES = ForeignNames(
    refused={
        "any_of": "write the alternatives as accelerators: {A100: 8, H100: 8}",
        "ordered": "write the alternatives as accelerators: {A100: 8, H100: 8}",
    },
    left_out={
        **dict.fromkeys(("cloud", "infra", "region", "zone", "use_spot", "spot_recovery", "job_recovery"), _CLOUD),
        **dict.fromkeys(("disk_size", "disk_tier", "network_tier", "ports", "labels", "autostop", "image_id"), _CLOUD),
        **dict.fromkeys(("instance_type", "accelerator_args", "local_disk", "_cluster_config_overrides"), _CLOUD),
        **dict.fromkeys(("cpus", "memory"), f"{_CLOUD}; --cpus and --mem limit a job"),
        "priority": "--priority N says how soon a job is served",
    },
)
"""The fields of a SkyPilot task's resources. An image is left out unless it is a container."""
RAY_JOBS = ForeignNames(
    refused={},
    left_out=dict.fromkeys(
        (
            *("rayClusterSpec", "clusterSelector", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "jobId"),
            *("submissionMode", "submitterPodTemplate", "submitterConfig", "deletionPolicy", "deletionStrategy"),
            *("managedBy", "metadata", "entrypointResources", "preRunningDeadlineSeconds", "gcsFaultToleranceOptions"),
        ),
        _CLUSTER,
    ),
)
"""The fields of a RayJob's spec."""
RUNTIME_ENVIRONMENTS = ForeignNames(
    refused={
        **dict.fromkeys(("pip", "uv", "conda", "py_modules", "java_jars"), _NO_PACKAGES),
        **dict.fromkeys(("container", "image_uri"), "Fairway starts jobs in no container. Take it out to run without"),
        "py_executable": "Fairway starts the entrypoint as it stands. Write the Python there",
        "mpi": "Fairway starts the entrypoint once. Call `mpirun` there",
        "worker_process_setup_hook": "Fairway starts no workers of Ray. Call it in the entrypoint",
    },
    left_out={"excludes": "nothing is copied", "config": _CLUSTER, "nsight": "", "_nsight": ""},
)
"""The fields of a RayJob's runtime environment."""


def left_out(
    fields: Mapping[str, Any], names: ForeignNames, taken: Collection[str], path: Path, prefix: str = ""
) -> list[str]:
    """Remarks about the fields that are left out; `InputError` if one of them is refused.

    A refused field that is empty asks for nothing.
    """
    remarks = []
    for key, value in fields.items():
        name = str(key)
        if name in taken:
            continue
        reason = names.refusal(name, taken)
        if reason is None:
            remarks.append(f"{path}: {names.remark(f'{prefix}{name}', name)}")
        elif value or names.explicit_refusal(name) is None:
            raise InputError(f"{prefix}{name}: {reason}", path=str(path))
    return remarks
