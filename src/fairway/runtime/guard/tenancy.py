"""Tenants of a live cluster: the virtual clusters that the configuration asks for, and what they mean for a request."""

from __future__ import annotations

from dataclasses import replace

from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.placement.tenants import OPPORTUNISTIC, Tenants
from fairway.runtime.daemon.config import Config, ConfigError, NotAdmittedError
from fairway.runtime.jobs.estimates import speeds_of
from fairway.runtime.jobs.request import JobRequest


def virtual_clusters(config: Config, cluster: Cluster, name: str) -> Tenants | None:
    """The virtual clusters of a configuration; None without tenants. `ConfigError` if the cluster cannot hold them.

    `name` is what the configuration is called in errors.
    """
    if not config.tenants:
        return None
    try:
        return Tenants(cluster, config.tenant_specs())
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
