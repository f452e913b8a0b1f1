"""A history replayed: what other policies would have made of the jobs of a machine, beside what really happened.

The replay has the jobs' own work, and the terms of the scheduler: its GPUs, its rounds, its placement, its protection
of fresh starts. Limits of users and tenants are not replayed. Policies that may know durations are told the true ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fairway.core.cluster import Cluster
from fairway.core.errors import FairwayError, InputError
from fairway.models.profile import load_profile
from fairway.policies import make_policy
from fairway.simulator.ledger import Ledger
from fairway.simulator.rates import Rates
from fairway.simulator.result import Result, RunCosts, RunSettings
from fairway.simulator.run import simulate
from fairway.simulator.tenancy import impossible_here
from fairway.traces.history import JobHistory, PastJob

KNOWN_ERROR = 0.07
"""By what part the simulator was off a live scheduler at most, in mean completion time (docs/live_results.md)."""
MOST_WALL_S = 10.0
IMPOSSIBLE = "cannot run on these GPUs"


class TooLongError(FairwayError):
    """A replay takes longer than it may."""


class Replays(NamedTuple):
    """What really happened and what each policy would have made of it, as documents of `Result.to_dict`.

    `problems` says of policies why there is no document.
    """

    actual: dict[str, Any]
    documents: list[dict[str, Any]]
    problems: dict[str, str]

    @property
    def verdict(self) -> str:
        """Which policy would have served this machine best, in a sentence."""
        return verdict(self.actual, self.documents)


def replayed(history: JobHistory, policies: Sequence[str], cluster: Cluster, *, wall_s: float = MOST_WALL_S) -> Replays:
    """A history under some policies on a cluster, within so many seconds in all."""
    fitting, deadline_s = fitted(history, cluster), time.monotonic() + wall_s
    documents, problems = list[dict[str, Any]](), dict[str, str]()

    def note(done: int, total: int) -> None:
        if time.monotonic() > deadline_s:
            raise TooLongError(f"the replays take longer than {wall_s:g} s; ask for fewer days or policies")

    for policy in policies:
        try:
            if not documents or time.monotonic() < deadline_s:
                made = simulate(fitting.workload, cluster=cluster, policy=policy, progress=note, **terms_of(fitting))
                documents.append(made.to_dict(per_job=False))
            else:
                note(0, 1)
        except FairwayError as error:
            problems[policy] = str(error)
    return Replays(actual_result(fitting).to_dict(per_job=False), documents, problems)


def terms_of(history: JobHistory) -> dict[str, Any]:
    """The terms of the scheduler, as `simulate` takes them."""
    return {"min_run_s": history.min_run_s, "round_s": history.round_s, "placement": history.placement}


def with_present(history: JobHistory, policies: Sequence[str]) -> list[str]:
    """The policies, and the present one before them: how far its replay is off shows how far all may be."""
    try:
        present, made = make_policy(history.policy), [make_policy(name) for name in policies]
    except FairwayError:
        # One of them is not there. The run of it will say so; a plug-in may not be loaded here.
        return list(policies)
    others = [name for name, policy in zip(policies, made, strict=True) if policy != present]
    return [history.policy, *others]


def fitted(history: JobHistory, cluster: Cluster, *, any_type: bool = False) -> JobHistory:
    """The history with the jobs that can run on a cluster (on any GPU type, if wanted). `InputError` without any."""
    rates = Rates(cluster, load_profile(None), spread_matters=False)
    moves = any_type or cluster is not history.cluster
    there = replace(history, jobs=tuple(_carried(history, rates, any_type))) if moves else history
    # What really happened counts for the same jobs.
    beyond = [at for at, job in enumerate(there.jobs) if impossible_here(job.spec, rates, None) is not None]
    left = there.without(beyond, IMPOSSIBLE)
    if not left.jobs:
        skipped = ", ".join(f"{count:,} {why}" for why, count in left.left_out.items())
        raise InputError(f"no job has run in this time{f' ({skipped})' if skipped else ''}")
    return left


def _carried(history: JobHistory, rates: Rates, any_type: bool) -> Iterator[PastJob]:
    """The jobs with their work on the GPU types of another cluster."""
    home = Rates(history.cluster, load_profile(None), spread_matters=False)
    for job in history.jobs:
        there = replace(job.spec, gpu_types=()) if any_type else job.spec
        scale = home.reference_speed(job.spec) / rates.reference_speed(there)
        yield job._replace(spec=replace(there, duration_s=(there.duration_s or 0.0) * scale))


def actual_result(history: JobHistory) -> Result:
    """What really happened, as a result."""
    cluster, jobs = history.cluster, history.jobs
    ledger, rates = Ledger(cluster, len(jobs)), Rates(history.cluster, load_profile(None), spread_matters=False)
    for at, (spec, started_s, finished_s, held_s, preemptions, starts, spans) in enumerate(jobs):
        widest = max(len(span.gpus) for span in spans) * spec.gpu_share
        gpu_s = sum((span.to_s - span.from_s) * len(span.gpus) for span in spans)
        # An attempt that was suspended for a while did not hold its GPUs all the time.
        whole_s = sum(span.to_s - span.from_s for span in spans)
        ledger.started_s[at], ledger.finished_s[at], ledger.held_s[at] = started_s, finished_s, held_s
        ledger.held_gpu_s[at] = gpu_s * spec.gpu_share * (held_s / whole_s if whole_s > 0 else 1.0)
        ledger.exclusive_s[at] = rates.alone_s(spec) if any(rates.speeds(spec, None)) else spec.duration_s
        ledger.lost_gpu_s[at] = max(held_s - (spec.duration_s or 0.0), 0.0) * widest
        ledger.cost[at] = ledger.held_gpu_s[at] / 3600.0 * _price(cluster, spans[0].gpus)
        ledger.starts[at], ledger.preemptions[at] = starts, preemptions
        here = [span for span in spans if span.gpus and max(span.gpus) < cluster.gpu_count]
        ledger.segments += [(at, span.from_s, span.to_s, span.gpus) for span in here]
    ledger.computed_gpu_s = float(ledger.held_gpu_s.sum())
    _sample(ledger, jobs)
    specs, rows = [job.spec for job in jobs], RunCosts(0, 0.0, 0.0, 0.0, 0)
    settings = RunSettings(
        policy=f"actual ({', then '.join(history.policies)})",
        knows=(),
        trace=history.workload.source,
        cluster=cluster.text or f"{cluster.gpu_count} GPUs",
        rules="live",
        placement=history.placement,
        profile="durations",
        round_s=history.round_s or 0.0,
        restart_cost_s=0.0,
        replan_interval_s=0.0,
        seed=0,
    )
    return Result(settings, rows, cluster, specs, ledger, history.left_out)


def _price(cluster: Cluster, gpus: Sequence[int]) -> float:
    if not gpus or gpus[0] >= cluster.gpu_count:
        return 0.0
    return cluster.types[cluster.node_type[cluster.node_of_gpu[gpus[0]]]].price_per_h


def _sample(ledger: Ledger, jobs: Sequence[PastJob]) -> None:
    """Busy GPUs, running jobs and active jobs over time."""
    changes: list[tuple[float, int, int, int]] = []
    for spec, _, finished_s, *_, spans in jobs:
        changes += [(spec.submitted_s, 0, 0, 1), (finished_s, 0, 0, -1)]
        for span in spans:
            changes += [(span.from_s, len(span.gpus), 1, 0), (span.to_s, -len(span.gpus), -1, 0)]
    changes.sort()
    totals = np.cumsum(np.array([change[1:] for change in changes], dtype=np.int64), axis=0)
    for at, (time_s, *_) in enumerate(changes):
        if at + 1 == len(changes) or changes[at + 1][0] > time_s:
            busy, running, active = totals[at].tolist()
            ledger.sample(time_s, min(busy, ledger.cluster.gpu_count), running, active)


def verdict(actual: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> str:
    """Which policy would have served this machine best by mean completion time, in a sentence with its caution."""
    really_s = actual["jct_s"]["mean"]
    whole = [each for each in documents if each["finished"] == actual["finished"]]
    if not whole or not really_s:
        return "no policy could be compared with what really happened"
    best = min(whole, key=lambda each: each["jct_s"]["mean"])
    gain = 1.0 - best["jct_s"]["mean"] / really_s
    error = max([KNOWN_ERROR, *(_off(each, actual) for each in whole)])
    if gain <= 0:
        told = f"no policy would have served this machine better than it was: the best replay, {best['policy']}, is "
        return f"{told}{_per_cent(-gain)} longer in mean completion time"
    told = f"{best['policy']} would have served this machine best: a mean completion time {_per_cent(gain)} shorter"
    if gain <= error:
        return f"{told}, but that is within the error of the simulator ({_per_cent(error)})"
    knows = " (it was told true run times)" if "duration" in best["knows"] else ""
    return f"{told} than it really was{knows}"


def _off(replay: Mapping[str, Any], actual: Mapping[str, Any]) -> float:
    """By what part the replay of the policy that was in force is off what really happened; 0 for others."""
    if actual["policy"] != f"actual ({replay['policy']})":
        return 0.0
    return float(abs(replay["jct_s"]["mean"] / actual["jct_s"]["mean"] - 1.0))


def _per_cent(part: float) -> str:
    return "less than 1 %" if part < 0.01 else f"{math.floor(100 * part + 0.5)} %"
