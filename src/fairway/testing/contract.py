"""`check_policy`: everything that Fairway asks of a policy, in one call.

A policy is a pure function of the snapshot. So it is asked the same question in many ways (twice, by a fresh instance,
after a trip through JSON, with the jobs renamed, in another process with another hash seed) and must give the same
answer. Then it drives small simulated clusters with failures, while every law of the scheduler is checked at every
event.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
import os
import pickle
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairway.core import columns as c
from fairway.core.check import check
from fairway.core.decision import Decision, Reason
from fairway.core.errors import FairwayError
from fairway.core.event import JobEvicted, NodeLost, Woken
from fairway.core.job import JobSpec
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.policies import make_policy
from fairway.policies.fractions import ByShare
from fairway.policies.priorities import by_priority
from fairway.simulator.engine import SimulatedEngine
from fairway.simulator.faults import Faults, Outage
from fairway.simulator.rules import rules_named
from fairway.testing.builders import (
    adaptive_workload,
    cluster,
    in_shares,
    job,
    random_cluster,
    random_snapshot,
    random_workload,
    snapshot_of,
    state_of,
)
from fairway.testing.harness import Check, run_policy, unfinished
from fairway.testing.invariants import InvariantError
from fairway.testing.order_law import check_order
from fairway.traces import pollux_like

Maker = Callable[[], Policy]
HASH_SEEDS = ("1", "271828")
MIN_STEPS_BETWEEN_KEPT = 7
QUEUES = 20
"""How many long queues a policy that promises an order is shown for each seed."""


def check_policy(
    policy: str | Policy | type[Any],
    *,
    seeds: Iterable[int] = range(4),
    work_conserving: bool = False,
    other_processes: bool = True,
) -> None:
    """Raise `AssertionError` if a policy breaks the contract; the text says how to repeat the failure.

    `policy` is a name with knobs (`"las:levels=3600"`), an instance, or a class that needs no arguments; it must be
    defined at the top level of a module, so that another process can load it. `work_conserving` adds a law: no job
    waits beside enough idle GPUs. (A policy that blocks at the head of the line, or plans ahead, does not keep it.)
    Without `other_processes`, which take a second to start, only this process is asked.
    """
    make, name = _maker(policy)
    kept: list[Snapshot] = []
    for seed in seeds:
        try:
            kept += _check_seed(make, seed, work_conserving)
        except Exception as error:
            again = f"repeat with: {_command(policy, make(), seed, work_conserving)}"
            text = (
                str(error) if isinstance(error, AssertionError | FairwayError) else f"{type(error).__name__}: {error}"
            )
            raise AssertionError(f"policy {name!r}, seed {seed}: {text}\n{again}") from error
    try:
        _check_corners(make)
        if other_processes:
            _check_other_processes(make(), kept)
    except Exception as error:
        text = str(error) if isinstance(error, AssertionError | FairwayError) else f"{type(error).__name__}: {error}"
        raise AssertionError(f"policy {name!r}: {text}") from error


def _check_seed(make: Maker, seed: int, work_conserving: bool) -> list[Snapshot]:
    """All checks of one seed; returns snapshots for the replay in another process."""
    policy = make()
    snapshots = [random_snapshot(100 * seed + k, knows=policy.knows) for k in range(4)]
    for snapshot in snapshots:
        check_decision(make, snapshot)
    met = _check_runs(make, seed, work_conserving)
    for snapshot in met:
        check_decision(make, snapshot)
    _check_order(make(), seed, met)
    _check_no_contention(make(), seed)
    return snapshots + met


def check_decision(make: Maker, snapshot: Snapshot) -> None:
    """One snapshot: the decision is lawful, the same in every way of asking, and changes nothing."""
    policy = make()
    before = _fingerprint(snapshot)
    decision = policy.decide(snapshot)
    if _fingerprint(snapshot) != before:
        raise AssertionError("the policy changes the snapshot that it is given")
    check(snapshot, decision)
    for row in (decision.gpus == 0).nonzero()[0].tolist():
        if not decision.reason(snapshot, row):
            raise AssertionError(f"row {row} waits with an empty reason")
    first = decision_digest(decision)
    for what, again in _askings(policy, make, snapshot):
        if decision_digest(again()) != first:
            raise AssertionError(f"the decision differs {what}")
    if not snapshot.memory and len(snapshot):
        renamed = policy.decide(_renamed(snapshot))
        if decision_digest(renamed, names=False) != decision_digest(decision, names=False):
            raise AssertionError("the decision differs when the jobs, users and queues have other names")


def _check_order(policy: Policy, seed: int, met: Sequence[Snapshot]) -> None:
    """A policy that promises an order keeps it, on snapshots with long queues and on those that a run has met."""
    order = getattr(policy, "serves_in", None)
    if order is None:
        return
    queues = [random_snapshot(1000 * seed + at, knows=policy.knows, jobs=24) for at in range(QUEUES)]
    for snapshot in (*queues, *met):
        check_order(snapshot, policy.decide(snapshot), order)


def _askings(policy: Policy, make: Maker, snapshot: Snapshot) -> list[tuple[str, Callable[[], Decision]]]:
    ways: list[tuple[str, Callable[[], Decision]]] = [
        ("the second time it is asked for", lambda: policy.decide(snapshot)),
        ("with a fresh instance", lambda: make().decide(snapshot)),
        ("on a copy of the snapshot", lambda: policy.decide(snapshot.copy())),
    ]
    if len(snapshot):
        text = to_json(snapshot)
        ways.append(("after the snapshot went through JSON", lambda: policy.decide(from_json(text))))
    return ways


def decision_digest(decision: Decision, *, names: bool = True) -> str:
    """A fingerprint of a decision; without `names`, only of what does not depend on the names of jobs."""
    about: dict[str, Any] = {
        "gpus": [int(count) for count in decision.gpus],
        "reasons": [int(code) for code in decision.reasons],
        "types": None if decision.gpu_types is None else [int(kind) for kind in decision.gpu_types],
        "ahead": decision.ahead,
        "wake_s": decision.wake_s,
        "partners": sorted(decision.partners.items()),
        "placements": sorted(decision.placements.items()),
        "throttles": sorted(decision.throttles.items()),
        "order": [int(row) for row in decision.order],
        "warm": decision.warm,
    }
    if decision.batches:
        about["batches"] = sorted(decision.batches.items())
    if names:
        about["texts"] = sorted(decision.texts.items())
        about["memory"] = decision.memory
    return hashlib.sha256(json.dumps(about, default=_plain, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise AssertionError(f"the policy's memory holds a {type(value).__name__}, which cannot be kept in a journal")


def _fingerprint(snapshot: Snapshot) -> str:
    columns = (snapshot.capacity.tolist(), snapshot.running.tolist(), snapshot.attained_s.tolist())
    return hashlib.sha256(f"{to_json(snapshot)}{columns}{snapshot.progress.tolist()}".encode()).hexdigest()


def _renamed(snapshot: Snapshot) -> Snapshot:
    """The same instant with other names, in another order."""
    data = json.loads(to_json(snapshot))
    data["ids"] = {number: f"z{1000 - int(number)}" for number in data["ids"]}
    data["names"] = [[f"n{99 - at}" for at in range(len(column))] for column in data["names"]]
    return from_json(json.dumps(data))


def _check_runs(make: Maker, seed: int, work_conserving: bool) -> list[Snapshot]:
    """Small clusters with restarts, protection and failures, with one GPU type and several: every job ends."""
    kept: list[Snapshot] = []
    for mixed in (False, True):
        where = random_cluster(seed, mixed=mixed)
        jobs = random_workload(seed, where, jobs=20).jobs
        faults = Faults(mtbf_s=20_000.0, repair_s=200.0 / 3, seed=seed)
        checks: tuple[Check, ...] = (_Stands(make()), _no_waste) if work_conserving else (_Stands(make()),)
        run = run_policy(
            make(), jobs, where, faults=faults, seed=seed, keep_every=MIN_STEPS_BETWEEN_KEPT, checks=checks
        )
        undone = unfinished(run, jobs)
        if undone:
            raise AssertionError(f"on {where.text} these jobs are never finished: {', '.join(undone)}")
        kept += run.snapshots[:6]
    _check_shares(make, seed)
    return kept


def _check_shares(make: Maker, seed: int) -> None:
    """Jobs that ask for shares of GPUs, among others: every job ends, and no GPU is shared by more than one GPU."""
    where = random_cluster(seed, mixed=bool(seed % 2))
    jobs = in_shares(random_workload(seed, where, jobs=12), seed).jobs
    undone = unfinished(run_policy(ByShare(by_priority(make())), jobs, where, seed=seed), jobs)
    if undone:
        raise AssertionError(f"on {where.text} these jobs, some with shares of GPUs, are never finished: {undone}")


class _Stands:
    """A decision that asks for no wake-up stands while nothing happens.

    Where a decision leaves everything as it is and wants never to be woken, the policy is asked about the same jobs at
    later instants, before the first job that runs could end. If it decides otherwise then, its order changes with time
    and it has to say when (`wake_s`), or it would act by chance, whenever something else happens.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __call__(self, snapshot: Snapshot, decision: Decision) -> None:
        waits = decision.gpus == 0
        if self._policy.round_s > 0 or math.isfinite(decision.wake_s) or not waits.any():
            return
        changes = bool((decision.gpus != snapshot.held).any()) or decision.placements or decision.partners
        if changes or (decision.reasons == Reason.NO_PLACEMENT).any():
            return
        for part in (0.5, 0.999):
            later = _later(snapshot, part * _quiet_s(snapshot), decision.memory)
            if (self._policy.decide(later).gpus != decision.gpus).any():
                raise InvariantError(
                    f"the decision at {snapshot.now_s} s asks for no wake-up (wake_s), but another one is taken at "
                    f"{later.now_s} s although nothing has happened"
                )


def _quiet_s(snapshot: Snapshot) -> float:
    """For how long nothing happens by itself to jobs that run; a day where none does."""
    rows, f = snapshot.running_rows, snapshot.floats
    if not len(rows):
        return 86_400.0
    if not (snapshot.rate[rows] > 0).all():
        return 0.0
    left_s = (f[c.REGIME_END, rows] - snapshot.progress[rows]) / snapshot.rate[rows]
    return float((np.maximum(f[c.READY_S, rows] - snapshot.now_s, 0.0) + left_s).min())


def _later(snapshot: Snapshot, seconds: float, memory: Mapping[str, Any]) -> Snapshot:
    """The same jobs at a later instant, with what the policy has remembered."""
    return Snapshot.of(
        frame=snapshot.frame,
        floats=snapshot.floats,
        ints=snapshot.ints,
        now_s=snapshot.now_s + seconds,
        round=snapshot.round + 1,
        capacity=snapshot.capacity,
        memory=memory,
        knows=snapshot.knows,
        guarded=snapshot.guarded,
        free=snapshot.free,
        demand=snapshot.demand,
    )


def _no_waste(snapshot: Snapshot, decision: Decision) -> None:
    """No job waits beside enough idle GPUs of a type that it can use. Tasks in queues are planned ahead."""
    if decision.queues:
        return
    free = snapshot.capacity.copy()
    for row in decision.gpus.nonzero()[0].tolist():
        kind = 0 if len(free) == 1 or decision.gpu_types is None else int(decision.gpu_types[row])
        free[kind] -= int(decision.gpus[row]) if row not in decision.partners else 0
    if len(free) > 1 and decision.gpu_types is None:
        return
    for row in (decision.gpus == 0).nonzero()[0].tolist():
        fits = (free >= snapshot.gpus[row]) & (snapshot.speeds[:, row] > 0)
        if fits.any():
            name = snapshot.job_id(int(snapshot.jobs[row]))
            raise InvariantError(f"at {snapshot.now_s} s job {name!r} waits beside {free.tolist()} idle GPUs")


def _check_no_contention(policy: Policy, seed: int) -> None:
    """With a GPU for every job, jobs take exactly as long as they last."""
    specs = random_workload(seed, "v100:8", jobs=10, elastic=False).jobs
    jobs: tuple[JobSpec, ...] = tuple(specs)
    if policy.round_s > 0:
        jobs = tuple(replace(spec, submitted_s=0.0, deadline_s=None) for spec in specs)
    where = cluster(f"v100:{len(jobs)}x8")
    run = run_policy(policy, jobs, where, rules=rules_named("native"), seed=seed)
    assert isinstance(run.engine, SimulatedEngine)
    for spec, end_s in zip(jobs, run.engine.ledger.finished_s.tolist(), strict=True):
        took_s, alone_s = end_s - spec.submitted_s, spec.duration_s or 0.0
        if not abs(took_s - alone_s) <= 1e-5:
            raise AssertionError(f"on an empty cluster job {spec.id!r} takes {took_s} s instead of {alone_s} s")


def _check_corners(make: Maker) -> None:
    """No jobs at all; one job alone; one job on a cluster with every node down."""
    knows = make().knows
    empty = state_of([], "v100:2x4").snapshot(knows)
    check(empty, make().decide(empty))
    for gpus in (1, 8):
        alone = snapshot_of([job("only", gpus, 100 / 3)], "v100:2x4", now_s=1 / 3, knows=knows)
        check_decision(make, alone)
        if make().round_s == 0 and make().decide(alone).gpus.tolist() != [gpus]:
            raise AssertionError(f"a job of {gpus} GPUs, alone on a cluster of 8, is not started")
    _check_all_down(make)
    _check_adaptive(make)
    ended = run_policy(make(), [job("only", 2, 100 / 3)], cluster("v100:2x4"))
    if unfinished(ended, [job("only", 2, 100 / 3)]):
        raise AssertionError("a job alone on the cluster is never finished")


def _check_adaptive(make: Maker) -> None:
    """Jobs that change their batch size while they train all end, on one GPU type and on two."""
    for where, seed in (("v100:2x4", 0), ("v100:1x4,t4:1x4", 1)):
        jobs = adaptive_workload(seed, jobs=8).jobs
        undone = unfinished(run_policy(make(), jobs, cluster(where), seed=seed), jobs)
        if undone:
            raise AssertionError(f"these jobs, some of which adapt, are never finished: {', '.join(undone)}")
    if "goodput" in make().knows:
        _check_tuned(make)


def _check_tuned(make: Maker) -> None:
    """Jobs whose batch the policy may choose all end, and the decisions on the way are the same in every way."""
    jobs = [spec for spec in pollux_like(16, seed=1, span_h=0.2).jobs if (spec.duration_s or 0.0) < 7200.0]
    run = run_policy(make(), jobs, cluster("t4:4x4"), keep_every=10)
    for snapshot in run.snapshots[:6]:
        check_decision(make, snapshot)
    undone = unfinished(run, jobs)
    if undone:
        raise AssertionError(f"these jobs, whose batch it may choose, are never finished: {', '.join(undone)}")


def _check_all_down(make: Maker) -> None:
    """While every node is down no job starts, at any time; the job runs once a node is back."""
    policy, knows = make(), make().knows
    state = state_of([job("only", 1, 1000.0)], "v100:2x4", now_s=1 / 3, running={"only": (0,)}, attained={"only": 0.2})
    state.memory = dict(policy.decide(state.snapshot(knows)).memory)
    for lost in (NodeLost(100.0, 0), NodeLost(100.0, 1), JobEvicted(100.0, 0, 50.0, "its node failed")):
        state.apply(lost)
    for now_s in (100.0, 120.0, 3600.0):
        state.apply(Woken(now_s))
        snapshot = state.snapshot(knows).copy()
        check_decision(make, snapshot)
        decision = policy.decide(snapshot)
        if decision.gpus.any():
            raise AssertionError(f"at {now_s:g} s a job is started on a cluster of which every node is down")
        state.memory = dict(decision.memory)
    jobs, where = [job("only", 2, 1000.0)], cluster("v100:2x4")
    outages = Faults(tuple(Outage(120.0 - node, node, 200.0) for node in (0, 1)))
    if unfinished(run_policy(make(), jobs, where, faults=outages), jobs):
        raise AssertionError("a job is never finished after every node of the cluster was down for a while")


def _check_other_processes(policy: Policy, snapshots: Sequence[Snapshot]) -> None:
    """The same decisions in another process: finds what depends on the order of a set or on earlier decisions."""
    asked = [snapshot for snapshot in snapshots if len(snapshot)]
    here = [decision_digest(policy.decide(from_json(to_json(snapshot)))) for snapshot in asked]
    question = json.dumps(
        {**_address(policy), "path": sys.path, "snapshots": [to_json(snapshot) for snapshot in reversed(asked)]}
    )
    for hash_seed in HASH_SEEDS:
        done = subprocess.run(
            [sys.executable, "-m", "fairway.testing", "--replay"],
            input=question,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"another process cannot decide: {done.stderr.strip().splitlines()[-1]}")
        there = json.loads(done.stdout)[::-1]
        if there != here:
            first = next(at for at, pair in enumerate(zip(here, there, strict=True)) if pair[0] != pair[1])
            seen = f"snapshot {first} at {asked[first].now_s} s"
            raise AssertionError(f"another process (PYTHONHASHSEED={hash_seed}) decides differently on {seen}")


def _address(policy: Policy) -> dict[str, str]:
    """Where another process finds the class, and its knobs."""
    cls = type(policy)
    if "<locals>" in cls.__qualname__:
        raise AssertionError("define the policy at the top level of a module, so that another process can load it")
    knobs: dict[str, Any] = {}
    if is_dataclass(policy):
        knobs = {f.name: getattr(policy, f.name) for f in fields(policy) if f.init}
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return {
        "module": cls.__module__,
        "file": file,
        "class": cls.__qualname__,
        "knobs": base64.b64encode(pickle.dumps(knobs)).decode(),
    }


def _maker(policy: str | Policy | type[Any]) -> tuple[Maker, str]:
    """How to make fresh instances, and the policy's name."""
    if isinstance(policy, str):
        spec = policy
        return (lambda: make_policy(spec)), spec
    if isinstance(policy, type):
        cls: Maker = policy
        return cls, str(getattr(policy, "name", policy.__name__))
    like = policy
    if is_dataclass(like) and not isinstance(like, type):
        return (lambda: replace(like)), like.name  # type: ignore[type-var, return-value, unused-ignore]
    return (lambda: copy.deepcopy(like)), like.name


def _command(policy: str | Policy | type[Any], made: Policy, seed: int, work_conserving: bool) -> str:
    """The command line that repeats a failure."""
    words = ["python", "-m", "fairway.testing", policy if isinstance(policy, str) else made.name, "--seed", str(seed)]
    module = type(made).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if file and not module.startswith("fairway."):
        words += ["--plugin", os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file]
    words += ["--work-conserving"] if work_conserving else []
    return shlex.join(words)
