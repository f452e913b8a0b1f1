"""Snapshots of jobs that have told their epochs and batch sizes, and markets of a few jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairway.core.facts import NO_FACTS
from fairway.core.job import JobSpec
from fairway.core.prospect import Entry, Prospect, Stage
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import to_json
from fairway.policies.shockwave.outlook import JobOutlook
from fairway.policies.shockwave.program import WindowMarket
from fairway.testing import job, snapshot_of

GROWING = Prospect(100.0, (Stage(32, (0.1,)), Stage(64, (0.25,))))
"""A hundred epochs of 10 s at batch size 32, or of 4 s once it has grown to 64."""


def told(
    jobs: Sequence[JobSpec],
    machines: str,
    prospects: Mapping[str, Prospect] | None = None,
    entries: Mapping[str, tuple[Entry, ...]] | None = None,
    **about: Any,
) -> Snapshot:
    """A snapshot for a policy that knows regimes, in which these jobs have announced these prospects."""
    snapshot = snapshot_of(jobs, machines, knows=("regimes",), **about)
    facts = dict(snapshot.frame.facts)
    for number, name in snapshot.frame.ids.items():
        seen = (entries or {}).get(name, ())
        facts[number] = facts.get(number, NO_FACTS)._replace(prospect=(prospects or {}).get(name), entries=seen)
    snapshot.frame = snapshot.frame._replace(facts=facts)
    return snapshot


def through_json(memory: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's memory as it comes back from a snapshot that was written down."""
    known: dict[str, Any] = json.loads(to_json(snapshot_of([job("a")], "v100:1", memory=memory)))["memory"]
    return known


def steady(work_s: float, kinds: int = 1) -> Prospect:
    """Ten epochs at one unknown batch size, as fast on every GPU type."""
    return Prospect(10.0, (Stage(0, (10.0 / work_s,) * kinds),))


def outlook_of(left_s: Sequence[float], **about: Any) -> JobOutlook:
    """What is left of some jobs that have not begun, in epochs of a minute; other columns can be given by name."""
    left = np.array(left_s, dtype=np.float64)
    columns: dict[str, Any] = dict.fromkeys(JobOutlook._fields, np.zeros(len(left)))
    columns |= {"left_s": left, "longest_s": left, "epochs": left / 60.0, "epoch_s": np.full(len(left), 60.0)}
    columns |= {name: np.array(values, dtype=np.float64) for name, values in about.items()}
    return JobOutlook(**(columns | {"kinds": np.zeros(len(left), dtype=np.int64), "paces": {}}))


def market_of(outlook: JobOutlook, gangs: Sequence[int], capacity: int, **about: Any) -> WindowMarket:
    """A market at time 0 of jobs that wait, with equal weights; other columns can be given by name."""
    jobs = len(gangs)
    share = np.full(jobs, min(1.0, capacity / jobs))
    columns: dict[str, Any] = {
        "running": np.zeros(jobs, dtype=bool),
        "weights": np.ones(jobs),
        "age_s": np.zeros(jobs),
        "restart_s": np.zeros(jobs),
        "share": share,
        "fair_s": outlook.total_s / share,
        "round_s": 120.0,
        "rounds": 20,
        "now_s": 0.0,
    }
    columns |= {name: np.array(value) if isinstance(value, list) else value for name, value in about.items()}
    return WindowMarket(gangs=np.array(gangs), capacity=capacity, outlook=outlook, **columns)


def random_market(
    seed: int, jobs: int, capacity: int, rounds: int = 20, sizes: tuple[int, ...] = (1, 2, 4, 8)
) -> WindowMarket:
    """Jobs of ten minutes to eleven hours, half of them begun, most of them small; some are late."""
    random = np.random.default_rng(seed)
    parts = np.array([0.6, 0.2, 0.12, 0.08])[: len(sizes)]
    gangs = random.choice(sizes, jobs, p=parts / parts.sum())
    total_s = np.exp(random.uniform(np.log(600.0), np.log(40_000.0), jobs))
    done = random.random(jobs) * (random.random(jobs) < 0.5)
    epochs = random.integers(5, 200, jobs).astype(np.float64)
    left_s = np.maximum(total_s * (1.0 - done), 1.0)
    about = {"epochs": epochs, "done": epochs * done, "ran_s": total_s * done, "epoch_s": total_s / epochs}
    return market_of(
        outlook_of(left_s.tolist(), **about),
        gangs.tolist(),
        capacity,
        running=random.random(jobs) < 0.4,
        age_s=random.uniform(0.0, 20_000.0, jobs),
        restart_s=np.full(jobs, 30.0),
        rounds=rounds,
        now_s=20_000.0,
    )
