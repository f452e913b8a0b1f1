"""The golden runs: short, fixed, and different enough that a change of behaviour anywhere shows in one of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fairway import Workload, simulate
from fairway.simulator.faults import Faults
from fairway.traces import gavel_like, philly_like, shockwave_like

FILE = Path(__file__).parent / "golden.json"
POLICIES = ("fifo", "backfill", "sjf", "smallest", "srtf", "srsf", "las", "proportional")
CLUSTERS = ("v100:4x4", "v100:2x4,k80:2x4")


def workloads() -> dict[str, Workload]:
    """Three generators, each with its own character."""
    return {
        "gavel": gavel_like(
            60, seed=1, mean_interarrival_s=900.0, durations="uniform-hours", max_h=5.0, multi_gpu=True, priorities=True
        ),
        "shockwave": shockwave_like(60, seed=2, mean_interarrival_s=300.0),
        "philly": philly_like(80, seed=3, gpus=8, load=8.0),
    }


def settings(name: str) -> dict[str, Any]:
    """Failures in one of the workloads, other rules in another."""
    if name == "philly":
        return {"faults": Faults(mtbf_s=200_000.0, seed=4)}
    return {"rules": "tiresias", "placement": "count"} if name == "gavel" else {}


def golden_runs() -> dict[str, dict[str, Any]]:
    """Digest and figures of every run, under `workload/cluster/policy`."""
    found: dict[str, dict[str, Any]] = {}
    for name, workload in workloads().items():
        for cluster in CLUSTERS:
            for policy in POLICIES:
                found[f"{name}/{cluster}/{policy}"] = golden_run(name, workload, cluster, policy)
    return found


def golden_run(name: str, workload: Workload, cluster: str, policy: str) -> dict[str, Any]:
    """One run: what it gave, and a digest of every completion to the microsecond."""
    result = simulate(workload, cluster=cluster, policy=policy, **settings(name))
    ends = ",".join(f"{round(end_s * 1e6)}" for end_s in result.finished_s.tolist())
    figures = result.figures()
    return {
        "digest": hashlib.sha256(ends.encode()).hexdigest()[:16],
        "finished": result.finished,
        "mean_jct_s": round(figures["jct_s"]["mean"], 1),
        "makespan_s": round(figures["makespan_s"], 1),
        "preemptions": figures["preemptions"],
        "utilisation": round(figures["utilisation"], 4),
    }
