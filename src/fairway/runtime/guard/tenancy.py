"""Tenants of a live cluster: the virtual clusters that the configuration asks for, and what they mean for a request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fairway.core.arrays import Bools
from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.core.snapshot import Snapshot
from fairway.placement.tenants import OPPORTUNISTIC, Tenants
from fairway.runtime.daemon.config import Config, ConfigError, NotAdmittedError
from fairway.runtime.jobs.estimates import speeds_of
from fairway.runtime.jobs.request import JobRequest


def virtual_clusters(config: Config, cluster: Cluster, name: str, usual: str = "") -> Tenants | None:
    """The virtual clusters of a configuration; None without tenants. `ConfigError` if the cluster cannot hold them.

    `name` is what the configuration is called in errors. `usual` is the GPU type of cells that name none: that of a
    cluster which had only one before it grew.
    """
    if not config.tenants:
        return None
    specs = config.tenant_specs()
    if len(cluster.types) > 1:
        typed = [tuple(replace(cell, gpu_type=cell.gpu_type or usual) for cell in spec.cells) for spec in specs]
        specs = [replace(spec, cells=cells) for spec, cells in zip(specs, typed, strict=True)]
    try:
        return Tenants(cluster, specs)
    except InputError as error:
        raise ConfigError(f"{name}: {error.message}") from None


def refuse_in_tenants(request: JobRequest, tenants: Tenants, cluster: Cluster) -> None:
    """Raise `NotAdmittedError` if a job can never run in its tenant's cells, or would be in the way of tenants.

    The request has its final queue and priority.
    """
    why = tenants.impossible(request, speeds_of(request, cluster))
    if why is not None:
        raise NotAdmittedError(f"{why}; with a negative priority it may run on what tenants leave idle")
    refuse_fixed(request, tenants)


def refuse_fixed(request: JobRequest, tenants: Tenants) -> None:
    """Raise `NotAdmittedError` if an opportunistic job may never be preempted: tenants would have to wait for it."""
    if request.preempt == "never" and tenants.owner_of(request) == OPPORTUNISTIC:
        claimed = tenants.claimant(request) != OPPORTUNISTIC
        why = "its priority is negative" if claimed else "no tenant claims its queue or its user"
        raise NotAdmittedError(f"a job that is never preempted needs GPUs of a tenant, and {why}")


def bounded_grace(request: JobRequest, tenants: Tenants, longest_s: float) -> JobRequest:
    """The request with a grace period of at most `longest_s` if it is opportunistic: a tenant waits no longer."""
    if request.grace_s <= longest_s or tenants.owner_of(request) != OPPORTUNISTIC:
        return request
    return replace(request, grace_s=longest_s)


def ranked(request: JobRequest, tenants: Tenants | None) -> int:
    """The priority that counts: negative if no tenant claims the job, so that it can be evicted at any time."""
    if tenants is None or tenants.claimant(request) != OPPORTUNISTIC:
        return request.priority
    return min(request.priority, OPPORTUNISTIC)


def rivals(tenants: Tenants | None, snapshot: Snapshot, row: int) -> Bools:
    """The rows whose GPUs a row could have had, itself among them: those of its tenant, or all if it has none."""
    if tenants is None:
        return np.ones(len(snapshot), dtype=np.bool_)
    owner = tenants.owners(snapshot)
    rows: Bools = (owner == owner[row]) | (owner[row] == OPPORTUNISTIC)
    return rows


def quota(tenants: Tenants, snapshot: Snapshot, row: int) -> dict[str, Any]:
    """What a row's tenant has reserved and uses, as JSON values. An opportunistic row has no tenant."""
    owner = tenants.owners(snapshot)
    if owner[row] == OPPORTUNISTIC:
        return {"name": None, "gpus": 0, "gpus_held": 0, "out_of_order": 0}
    held = (snapshot.gpus_held(one) for one in (owner == owner[row]).nonzero()[0].tolist())
    return _told(tenants, int(owner[row]), {gpu for gpus in held for gpu in gpus}, snapshot.memory)


def _told(tenants: Tenants, number: int, held: Collection[int], memory: Mapping[str, Any]) -> dict[str, Any]:
    part, known = tenants.parts[number], memory.get("tenants", {}).get(tenants.parts[number].name, {})
    lacking = part.cluster.gpu_count - int(part.counted(known.get("lost", ()), known.get("bad", ())).sum())
    about = {"gpus": part.cluster.gpu_count, "gpus_held": len(held), "out_of_order": lacking}
    return {"name": part.name, **about}


def left_by_type(tenants: Tenants, snapshot: Snapshot, row: int) -> list[int]:
    """How many GPUs of each type a row's tenant has reserved and does not use."""
    owner = tenants.owners(snapshot)
    part = tenants.parts[owner[row]]
    known = snapshot.memory.get("tenants", {}).get(part.name, {})
    left = np.zeros(len(snapshot.capacity), dtype=np.int64)
    left[list(part.kinds)] = part.counted(known.get("lost", ()), known.get("bad", ()))
    mine = (owner == owner[row]) & (snapshot.held > 0) & (snapshot.host < 0)
    np.subtract.at(left, snapshot.gpu_type[mine], snapshot.held[mine])
    return [max(int(count), 0) for count in left]


def tenants_told(
    tenants: Tenants,
    requests: Mapping[int, JobRequest],
    held_gpus: Mapping[int, Collection[int]],
    memory: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """All tenants with their quotas and what they use, as JSON values. `requests` are those of jobs that have not
    ended, by job number."""
    jobs: list[list[int]] = [[] for _ in tenants.parts]
    for job, request in requests.items():
        owner = tenants.owner_of(request)
        if owner != OPPORTUNISTIC:
            jobs[owner].append(job)
    told = []
    for number, spec in enumerate(tenants.specs):
        held = {gpu for job in jobs[number] for gpu in held_gpus.get(job, ())}
        running = sum(job in held_gpus for job in jobs[number])
        about = {"cells": [str(cell) for cell in spec.cells], "queues": list(spec.queues), "users": list(spec.users)}
        count = {"running": running, "waiting": len(jobs[number]) - running}
        told.append({**_told(tenants, number, held, memory), **about, **count})
    return told
