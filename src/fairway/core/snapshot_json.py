"""A snapshot as JSON text, from which a decision can be repeated elsewhere; and a policy's memory as plain values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fairway.core.arrays import frozen
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError
from fairway.core.facts import Facts, History
from fairway.core.pairing import ALL_SEEN, MeasuredTable, PairTable
from fairway.core.queues import plain_queues, queues_from_plain
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_context import Frame, Names

FORMAT = 2


def to_json(snapshot: Snapshot) -> str:
    """Everything a decision depends on, as text; `from_json` gives an equal snapshot back."""
    cluster, frame = snapshot.cluster, snapshot.frame
    jobs = snapshot.jobs.tolist()
    return json.dumps(
        {
            "fairway_snapshot": FORMAT,
            "now_s": snapshot.now_s,
            "round": snapshot.round,
            "seed": snapshot.seed,
            "knows": sorted(snapshot.knows),
            "cluster": {
                "text": cluster.text,
                "nodes": [[n.name, n.gpu_type, n.gpus, n.rack] for n in cluster.nodes],
                "types": [[t.name, t.memory_bytes, t.price_per_h, t.speed] for t in cluster.types],
            },
            "capacity": snapshot.capacity.tolist(),
            "free": snapshot.free,
            "demand": snapshot.demand,
            "replan_interval_s": snapshot.replan_interval_s,
            "round_s": snapshot.round_s,
            "names": [list(column) for column in snapshot.names],
            "floats": snapshot.floats.tolist(),
            "ints": snapshot.ints.tolist(),
            "ids": {job: snapshot.job_id(job) for job in jobs},
            "held_gpus": {job: frame.held_gpus.get(job, ()) for job in snapshot.jobs[snapshot.running].tolist()},
            "facts": {job: facts.plain() for job in jobs if (facts := frame.facts.get(job))},
            "history": frame.history.plain(),
            "down": sorted(frame.down),
            "withheld": sorted(frame.withheld),
            "pairs": snapshot.pair_table().plain(),
            "measured": snapshot.measured_table().plain(),
            "resume_s": None if frame.resume_s is None else snapshot.resume_costs(),
            "queues": None if frame.queues is None else plain_queues(frame.queues),
            "memory": plain_memory(snapshot.memory),
        }
    )


def from_json(text: str) -> Snapshot:
    """Read what `to_json` wrote."""
    try:
        data = json.loads(text)
        if data["fairway_snapshot"] != FORMAT:
            raise InputError(f"this snapshot has format {data['fairway_snapshot']}; this Fairway reads format {FORMAT}")
        frame, rows = _frame(data), len(data["ids"])
        return Snapshot.of(
            frame=frame,
            floats=frozen(np.array(data["floats"], dtype=np.float64).reshape(len(data["floats"]), rows)),
            ints=frozen(np.array(data["ints"], dtype=np.int64).reshape(len(data["ints"]), rows)),
            now_s=data["now_s"],
            round=data["round"],
            capacity=frozen(np.array(data["capacity"], dtype=np.int64)),
            memory=data["memory"],
            knows=frozenset(data["knows"]),
            guarded=True,
            free=data["free"],
            demand=data["demand"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"this is not a Fairway snapshot ({type(error).__name__}: {error})") from None


def _frame(data: Mapping[str, Any]) -> Frame:
    about = data["cluster"]
    cluster = Cluster.of((Node(*n) for n in about["nodes"]), (GpuType(*t) for t in about["types"]), about["text"])
    return Frame(
        cluster,
        Names(*(tuple(column) for column in data["names"])),
        {int(job): name for job, name in data["ids"].items()},
        {int(job): tuple(gpus) for job, gpus in data["held_gpus"].items()},
        data["seed"],
        data["replan_interval_s"],
        {int(job): Facts.from_plain(facts) for job, facts in data["facts"].items()},
        History.from_plain(data["history"]),
        frozenset(data.get("down", ())),
        PairTable.from_plain(data.get("pairs", ((), ()))),
        data.get("round_s", 0.0),
        frozenset(data.get("withheld", ())),
        None if data.get("queues") is None else queues_from_plain(data["queues"]),
        MeasuredTable.from_plain(data.get("measured", ALL_SEEN.plain())),
        _resume_costs(data.get("resume_s")),
    )


def _resume_costs(costs_s: Mapping[str, float] | None) -> Callable[[int], float] | None:
    return None if costs_s is None else {int(job): float(cost_s) for job, cost_s in costs_s.items()}.__getitem__


def plain_memory(value: Any) -> Any:
    """What a policy remembers as JSON values."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain_memory(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_memory(item) for item in value]
    return value
