"""`simulate`: a trace, a cluster and a policy in, a result out."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairway.core import kernels
from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.errors import InputError
from fairway.core.job import JobSpec, Workload
from fairway.core.policy import Policy
from fairway.core.round import Loop, Observer
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.core.units import MOST_SECONDS
from fairway.models.profile import Profile, load_profile
from fairway.models.suspension import Suspension
from fairway.models.switching import Switching
from fairway.placement import placement as placement_named
from fairway.placement.tenants import Tenants
from fairway.policies import make_policy
from fairway.policies.fractions import ByShare
from fairway.policies.priorities import by_priority
from fairway.simulator.bound import least_weighted_jct_s
from fairway.simulator.engines import engine_of, rates_of, runs_queues
from fairway.simulator.faults import Faults
from fairway.simulator.foretelling import told_by
from fairway.simulator.job_engine import JobEngine
from fairway.simulator.rates import Rates
from fairway.simulator.result import Result, RunCosts, RunSettings
from fairway.simulator.rules import Rules, rules_named, switched
from fairway.simulator.switch_table import switching_of
from fairway.simulator.tenancy import TenantsGiven, impossible_here, inside, tenants_of, told
from fairway.traces import read_cluster, read_trace

Progress = Callable[[int, int], None]
"""A function that is called from time to time with (jobs finished, all jobs)."""

_PROGRESS_EVERY_STEPS = 500
SHORTEST_ROUND_S = 0.1
TASK_SWITCHING = "resident"
"""How GPUs switch between the tasks of jobs, unless the user says otherwise: policies of tasks are made for this."""
COMPILE_FROM_JOBS = 10_000
"""With fewer jobs than this, loading the compiled kernels takes longer than they save."""
COMPILE_TASKS_FROM_JOBS = 100
"""The same for jobs that are planned as tasks."""


class _TimedPolicy:
    """A policy whose decisions are measured, each of them, in CPU time.

    A sample would be cheaper, because reading the CPU clock is a system call. But policies plan periodically, so the
    long decisions may be those that a sample takes, or those that it leaves out.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = policy.name
        self.knows = policy.knows
        self.round_s = policy.round_s
        self.cpu_s = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        before_s = time.process_time()
        decision = self.policy.decide(snapshot)
        self.cpu_s += time.process_time() - before_s
        return decision


def simulate(
    trace: str | Path | Workload,
    *,
    cluster: str | Cluster,
    policy: str | Policy,
    profile: str | Profile | None = None,
    rules: str | Rules = "native",
    round_s: float | None = None,
    restart_cost_s: float | None = None,
    replan_interval_s: float | None = None,
    placement: str | None = None,
    seed: int = 0,
    trace_format: str | None = None,
    faults: Faults | None = None,
    skip_impossible: bool = False,
    any_type: bool = False,
    tenants: TenantsGiven = None,
    priorities: bool | None = None,
    fractions: bool | None = None,
    switching: str | Switching | None = None,
    min_run_s: float | None = None,
    progress: Progress | None = None,
    observer: Observer | None = None,
    promises: int = 0,
) -> Result:
    """Replay a trace on a described cluster under a policy.

    `skip_impossible` leaves out jobs that can never run there, and counts them. `any_type` lets jobs that ask for a GPU
    type run on any type, for a trace of other hardware. `tenants` (a file or `TenantSpec`s) gives each tenant a virtual
    cluster. `priorities` says whether jobs of a higher priority are served first, `fractions` whether jobs that ask for
    a share of a GPU get that or a whole GPU; None is as the rules say. `switching` replaces the costs of starts.
    So many `promises` of ends are made and scored.

    >>> import fairway
    >>> jobs = [fairway.JobSpec("a", 0, gpus=4, duration_s=100), fairway.JobSpec("b", 0, gpus=1, duration_s=10)]
    >>> result = fairway.simulate(fairway.Workload.of(jobs), cluster="v100:4", policy="srtf")
    >>> [float(jct) for jct in result.jct_s]
    [110.0, 10.0]
    >>> result.figures()["preemptions"]
    0
    """
    wall_s, cpu_s = time.monotonic(), time.process_time()
    workload, machines = _read(trace, trace_format, cluster)
    changed = {"restart_cost_s": restart_cost_s, "replan_interval_s": replan_interval_s, "min_run_s": min_run_s}
    world = _world(rules, round_s, changed, {"priorities": priorities, "fractions": fractions}, switching)
    chosen = make_policy(policy, world.knobs) if isinstance(policy, str) else policy
    table = load_profile(profile) if profile is None or isinstance(profile, str) else profile
    placer = placement_named(placement or world.placement)
    shared = tenants_of(tenants, machines)
    tasks = "tasks" in chosen.knows and runs_queues(world) and shared is None  # tenants have whole nodes, for gangs
    world = _switching_tasks(world, restart_cost_s) if tasks else world
    rates = rates_of(world, machines, table, workload.jobs, whole_gangs=not tasks)
    jobs, skipped = _possible(_prepared(workload, any_type, world, tasks=tasks), rates, skip_impossible, shared)
    length_s = chosen.round_s if world.round_s is None else world.round_s
    about: dict[str, Any] = {"located": placer.located, "round_s": length_s, "faults": faults, "seed": seed}
    engine, loop_round_s = engine_of(machines, jobs, rates, world, tells=chosen.knows, **about)
    inner = by_priority(chosen) if world.priorities and len({job.priority for job in jobs}) > 1 else chosen
    timed = _TimedPolicy(_by_share(inside(shared, inner, placer, length_s, world), jobs, shared))
    about = {"replan_interval_s": world.replan_interval_s, "seed": seed, "pairing": engine.pairing, "round_s": length_s}
    state = State(machines, min_run_s=world.min_run_s, runs_queues=tasks, resume_s=engine.resume_s, **about)
    known = (jobs, timed.policy, placer, world)
    watch = told_by(0 if tasks else promises, engine, *known, round_s=loop_round_s, seed=seed, inner=observer)
    loop = Loop(engine, state, timed, placer, round_s=loop_round_s, observer=watch or observer)
    _run(loop, engine, progress)
    costs = _costs(state.round, timed.cpu_s, time.process_time() - cpu_s, time.monotonic() - wall_s)
    about = _named(policy, chosen, workload, machines) | {"placement": placement or world.placement, "seed": seed}
    about |= _told(world, inner is not chosen, min_run_s, tenants, jobs, table) | {"round_s": length_s}
    least_s = least_weighted_jct_s(jobs, rates, machines) if tasks else None
    ran, kept = (engine.ledger, skipped, engine.switches, least_s), None if watch is None else watch.figures()
    return Result(RunSettings(**about), costs, machines, jobs, *ran, kept)


def _read(trace: str | Path | Workload, trace_format: str | None, cluster: str | Cluster) -> tuple[Workload, Cluster]:
    workload = trace if isinstance(trace, Workload) else read_trace(str(trace), format=trace_format)
    return workload, cluster if isinstance(cluster, Cluster) else read_cluster(cluster)


def _ask_for_shares(jobs: Sequence[JobSpec]) -> bool:
    return any(job.gpu_share < 1 for job in jobs)


def _by_share(policy: Policy, jobs: Sequence[JobSpec], tenants: Tenants | None) -> Policy:
    """The policy, asked about bundles if jobs ask for shares of GPUs. Tenants, who may be users, share none."""
    return ByShare(policy, by_user=lambda: tenants is not None) if _ask_for_shares(jobs) else policy


def _prepared(workload: Workload, any_type: bool, world: Rules, *, tasks: bool) -> Workload:
    """The workload with the restart costs of applications, where rules give some, and for any type if asked for.

    Jobs that ask for a share of a GPU get all of it where the rules say so, and where GPUs run tasks one by one.
    """
    costs, whole = world.restart_costs, (tasks or not world.fractions) and _ask_for_shares(workload.jobs)
    if not any_type and not costs and not whole:
        return workload

    def prepared(job: JobSpec) -> JobSpec:
        cost_s = costs.get(job.dataset) if job.checkpoint_s is None else job.checkpoint_s
        share = 1.0 if whole else job.gpu_share
        return replace(job, checkpoint_s=cost_s, gpu_types=() if any_type else job.gpu_types, gpu_share=share)

    return replace(workload, jobs=tuple(prepared(job) for job in workload.jobs))


def _costs(rounds: int, decide_cpu_s: float, cpu_s: float, wall_s: float) -> RunCosts:
    return RunCosts(rounds, decide_cpu_s, cpu_s, wall_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _switching_tasks(world: Rules, restart_cost_s: float | None) -> Rules:
    """The rules with the costs of switching GPUs between tasks, if they have none. Where starts are free, these are."""
    if isinstance(world.switching, Suspension):
        raise InputError("this policy runs jobs as tasks, which are not suspended; use --switching resident")
    if world.switching is not None:
        return world
    if restart_cost_s is None and world.restart_cost_s > 0:
        return switched(world, switching_of(TASK_SWITCHING))
    return switched(world, Switching.fixed(world.restart_cost_s))


def _named(policy: str | Policy, chosen: Policy, workload: Workload, machines: Cluster) -> dict[str, Any]:
    about = {"policy": policy if isinstance(policy, str) else policy.name, "knows": tuple(sorted(chosen.knows))}
    return about | {"trace": workload.source or "workload", "cluster": machines.text or f"{machines.gpu_count} GPUs"}


def _told(
    world: Rules,
    priorities: bool,
    min_run_s: float | None,
    tenants: TenantsGiven,
    jobs: Sequence[JobSpec],
    table: Profile,
) -> dict[str, Any]:
    """What a result says about the rules, about tenants and about jobs."""
    return {
        "profile": table.name if any(job.steps is not None for job in jobs) else "durations",
        "tenants": told(tenants),
        "rules": world.name,
        "restart_cost_s": world.restart_cost_s,
        "replan_interval_s": world.replan_interval_s,
        "priorities": priorities,
        "fractions": _ask_for_shares(jobs),
        "min_run_s": min_run_s,
        "switching": "" if world.switching is None else world.switching.text,
    }


def _world(
    rules: str | Rules,
    round_s: float | None,
    changed: Mapping[str, float | None],
    layers: Mapping[str, bool | None],
    switching: str | Switching | None,
) -> Rules:
    for key, value in {"round_s": round_s, **changed}.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            name = key.removesuffix("_s").replace("_", " ")
            raise InputError(f"the {name} must be a finite number of seconds of at least 0, not {value}")
    if round_s is not None and not (round_s == 0 or SHORTEST_ROUND_S <= round_s <= MOST_SECONDS):
        raise InputError(f"a round must be 0 (at every event) or at least {SHORTEST_ROUND_S:g} s, not {round_s:g}")
    world = rules_named(rules, round_s=round_s, **changed, **layers)
    if switching is None:
        return world if changed["restart_cost_s"] is None else replace(world, restart_costs={})
    if changed["restart_cost_s"] is not None:
        raise InputError("give a restart cost or a switching, not both")
    return switched(world, switching if isinstance(switching, Switching) else switching_of(switching))


def _possible(
    workload: Workload, rates: Rates, skip: bool, tenants: Tenants | None = None
) -> tuple[tuple[JobSpec, ...], dict[str, int]]:
    """The jobs that can run on this cluster. Others are an error, or are counted as skipped."""
    skipped = dict(workload.skipped)
    jobs: list[JobSpec] = []
    for job in workload.jobs:
        try:
            why = impossible_here(job, rates, tenants)
        except InputError as error:
            line = workload.lines.get(job.id)
            raise InputError(f"job {job.id!r}: {error}", path=workload.source or None, line=line) from None
        if why is None:
            jobs.append(job if tenants is None else tenants.marked(job))
        elif skip:
            skipped["impossible on this cluster"] = skipped.get("impossible on this cluster", 0) + 1
        else:
            text = f"job {job.id!r} can never run: {why}; --skip-impossible leaves such jobs out"
            raise InputError(text, path=workload.source or None, line=workload.lines.get(job.id))
    if not jobs:
        raise InputError("no job can be simulated", path=workload.source or None)
    return tuple(jobs), skipped


def _run(loop: Loop, engine: JobEngine[Any], progress: Progress | None) -> None:
    """Step to the end, and sample the length of the queue."""
    state, ledger, total = loop.state, engine.ledger, engine.left
    step, sample = loop.step, ledger.sample
    if total >= (COMPILE_FROM_JOBS if state.snapshot().queues is None else COMPILE_TASKS_FROM_JOBS):
        kernels.use_compiled()
    steps = 0
    while step():
        sample(state.now_s, state.busy_gpus, engine.running, state.active)
        steps += 1
        if progress is not None and steps % _PROGRESS_EVERY_STEPS == 0:
            progress(total - engine.left, total)
    if progress is not None:
        progress(total - engine.left, total)
