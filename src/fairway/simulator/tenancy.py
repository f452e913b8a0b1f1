"""Tenants in a run: their virtual clusters from a file, the jobs that cannot run in them, and the policy in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.core.job import JobSpec
from fairway.core.plan import Placer
from fairway.core.policy import Policy
from fairway.core.tenant import TenantSpec
from fairway.placement.tenanted import Tenanted
from fairway.placement.tenants import Tenants
from fairway.simulator.rates import Rates, impossible
from fairway.simulator.rules import Rules
from fairway.traces.tenants import read_tenants

TenantsGiven: TypeAlias = str | Path | Sequence[TenantSpec] | None
"""Tenants as a caller gives them: a file, a list of tenants, or None."""


def tenants_of(given: TenantsGiven, machines: Cluster) -> Tenants | None:
    """The virtual clusters. `InputError` if the cluster cannot hold the reservations."""
    if given is None:
        return None
    if not isinstance(given, str | Path):
        if not all(isinstance(spec, TenantSpec) for spec in given):
            raise InputError("tenants must be a file or a list of TenantSpec")
        return Tenants(machines, given)
    specs = read_tenants(str(given))
    try:
        return Tenants(machines, specs)
    except InputError as error:
        raise InputError(error.message, path=str(given)) from None


def told(given: TenantsGiven) -> str:
    """Tenants as a result names them."""
    if given is None:
        return ""
    return str(given) if isinstance(given, str | Path) else ", ".join(spec.name for spec in given)


def impossible_here(job: JobSpec, rates: Rates, tenants: Tenants | None) -> str | None:
    """Why a job can never run on this cluster, or in its tenant's part of it."""
    why = impossible(job, rates)
    if why is not None or tenants is None:
        return why
    regimes = [rates.speeds_in(job, regime) for regime in rates.regimes(job)]
    slowest = [min(speeds) for speeds in zip(rates.speeds(job, job.batch_size), *regimes, strict=True)]
    return tenants.impossible(job, slowest)


def inside(tenants: Tenants | None, policy: Policy, placer: Placer, round_s: float, rules: Rules) -> Policy:
    """The policy, in the virtual clusters if there are tenants."""
    if tenants is None:
        return policy
    # Wake-ups are rounded up to the grid, except within a thousandth of it.
    return Tenanted(policy, tenants, placer, in_rounds=round_s > 0, slack_s=2e-3 * rules.time_quantum_s)
