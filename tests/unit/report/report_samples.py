"""Made-up results with the shape of real ones, repeatable from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

POLICIES = {
    "fifo": (1.0, ()),
    "las": (0.45, ()),
    "srtf": (0.3, ("duration",)),
    "gavel": (0.5, ("throughput",)),
    "themis": (0.6, ("duration", "throughput")),
    "tiresias": (0.42, ()),
    "pollux": (0.38, ("throughput",)),
    "shockwave": (0.55, ("duration", "throughput")),
}
MANY = (*POLICIES, "antman", "capacity", "gandiva_fair", "hived", "optimus", "proportional", "tiresias-gittins")
ATTACK = "</script><script>document.body.dataset.error='owned'</script><img src=x onerror=alert(1)>"


def sample_result(
    policy: str = "fifo",
    *,
    jobs: int = 300,
    nodes: int = 4,
    seed: int = 0,
    raster: bool = False,
    per_job: bool = True,
    job_prefix: str = "job-",
) -> dict[str, Any]:
    random = np.random.default_rng([seed, jobs, len(policy), sum(map(ord, policy))])
    pressure, knows = POLICIES.get(policy, (0.7, ()))
    gpus = nodes * 8
    wanted = random.choice([1, 1, 1, 2, 4, 8], jobs)
    exclusive = np.random.default_rng(seed).lognormal(7.5, 1.6, jobs)
    span = float((exclusive * wanted).sum() / gpus / 0.8) + 1.0
    submitted = np.sort(random.uniform(0, span * 0.75, jobs))
    queued = random.exponential(1.0, jobs) * exclusive.mean() * 2.5 * pressure * (random.random(jobs) < 0.75)
    jct = exclusive + queued
    finished = submitted + jct
    rho = {kind: jct / exclusive / factor for kind, factor in (("static", 6), ("concurrent", 2.5), ("isolated", 3))}
    users = [f"user{int(n):02d}" for n in random.zipf(1.5, jobs) % 40]
    rows = [
        {
            "id": f"{job_prefix}{i}",
            "user": users[i],
            "queue": f"q{i % 3}",
            "model": "resnet50",
            "gpus": int(wanted[i]),
            "submitted_s": float(submitted[i]),
            "started_s": float(submitted[i] + queued[i]),
            "finished_s": float(finished[i]),
            "jct_s": float(jct[i]),
            "queue_s": float(queued[i]),
            "exclusive_s": float(exclusive[i]),
            "preemptions": 0,
            "restarts": 0,
            **{f"rho_{kind}": float(values[i]) for kind, values in rho.items()},
        }
        for i in range(jobs)
    ]
    result: dict[str, Any] = _about(policy, list(knows), nodes) | {
        "seed": seed,
        "jobs": jobs,
        "finished": jobs,
        "skipped": 0,
        "makespan_s": float(finished.max()),
        "jct_s": _summary(jct),
        "queue_s": _summary(queued),
        "feedback_s": _summary(queued + 40.0),
        "utilisation": 0.8 - pressure / 8,
        "throughput": 0.75 - pressure / 8,
        "preemptions": int(jobs * (1 - pressure)),
        "restarts": 3,
        "lost_gpu_h": jobs * (1 - pressure) / 40,
        "cost": span * gpus / 3600 * 2.5,
        "deadline_misses": None,
        "jain": 0.9 - pressure / 10,
        "ftf": {kind: _fairness(values) for kind, values in rho.items()},
        "per_user": {user: _owner(rows, "user", user) for user in sorted(set(users))},
        "per_queue": {queue: _owner(rows, "queue", queue) for queue in ("q0", "q1", "q2")[:jobs]},
        "series": _series(random, submitted, submitted + queued, finished, gpus),
        "gantt": _raster(random, nodes, span) if raster else _segments(random, nodes, rows, exclusive, span),
    }
    result |= {"rounds": jobs * 2, "decide_cpu_s": 0.4, "cpu_s": 2.0, "wall_s": 2.1, "peak_rss_bytes": 90_000_000}
    if per_job:
        result["per_job"] = rows
    return result


def _about(policy: str, knows: list[str], nodes: int) -> dict[str, Any]:
    return {
        "schema": "fairway.result/1",
        "fairway": "0.1.0",
        "policy": policy,
        "knows": knows,
        "trace": "philly.csv",
        "cluster": f"v100:{nodes}x8",
        "gpus": nodes * 8,
        "rules": "native",
        "placement": "packed",
        "round_s": 0.0,
        "restart_cost_s": 30.0,
    }


def shared_gpu() -> dict[str, Any]:
    """One GPU; a host holds it for 3270 s, and a guest sits beside it from 300 s to 1064 s. Segments come by end."""
    result = sample_result(jobs=2, nodes=1)
    for job, name in zip(result["per_job"], ("the-host", "the-guest"), strict=True):
        job["id"] = name
    segments = [[0, 300.0, 1064.0, 1], [0, 0.0, 3270.0, 0]]
    names = {"gpus": ["v100-0/0"], "jobs": ["the-host", "the-guest"]}
    return result | {"gantt": {"kind": "segments", **names, "segments": segments}}


def nothing_finished(policy: str = "fifo") -> dict[str, Any]:
    """A run in which no job finished: every statistic is null."""
    result = sample_result(policy, jobs=3)
    empty = dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
    result |= {
        "finished": 0,
        "jct_s": empty,
        "queue_s": empty,
        "feedback_s": empty,
        "throughput": None,
        "makespan_s": None,
        "utilisation": None,
        "jain": None,
    }
    result |= {"ftf": {kind: dict.fromkeys(("mean", "worst", "p99", "unfair_fraction")) for kind in result["ftf"]}}
    result |= {"cost": None, "lost_gpu_h": None, "preemptions": None, "restarts": None, "per_user": {}, "per_queue": {}}
    result |= {"series": {"time_s": [], "busy_gpus": [], "running": [], "waiting": []}}
    result |= {"gantt": {"kind": "segments", "gpus": [], "jobs": [], "segments": []}}
    for job in result["per_job"]:
        job |= dict.fromkeys(("started_s", "finished_s", "jct_s", "rho_static", "rho_concurrent", "rho_isolated"))
    return result


def _summary(values: Any) -> dict[str, float | None]:
    p50, p95, p99 = (float(q) for q in np.quantile(values, (0.5, 0.95, 0.99)))
    return {"mean": float(values.mean()), "p50": p50, "p95": p95, "p99": p99, "max": float(values.max())}


def _fairness(values: Any) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        "worst": float(values.max()),
        "p99": float(np.quantile(values, 0.99)),
        "unfair_fraction": float((values > 1.05).mean()),
    }


def _owner(rows: list[dict[str, Any]], key: str, name: str) -> dict[str, float]:
    own = [row for row in rows if row[key] == name]
    return {
        "jobs": len(own),
        "gpu_h": sum(row["gpus"] * row["exclusive_s"] for row in own) / 3600,
        "jct_mean_s": sum(row["jct_s"] for row in own) / len(own),
        "queue_mean_s": sum(row["queue_s"] for row in own) / len(own),
    }


def _series(random: Any, submitted: Any, started: Any, finished: Any, gpus: int) -> dict[str, list[float]]:
    times = np.linspace(0, finished.max(), 2000)
    came, began, left = (
        np.searchsorted(np.sort(moments), times, side="right") for moments in (submitted, started, finished)
    )
    running = began - left
    busy = np.minimum(gpus, running * gpus / max(1, running.mean() * 1.3) + random.normal(0, gpus / 25, 2000)).clip(0)
    columns = {"time_s": times, "busy_gpus": busy.round(), "running": running, "waiting": came - began}
    return {key: [float(value) for value in values] for key, values in columns.items()}


def _segments(random: Any, nodes: int, rows: list[dict[str, Any]], exclusive: Any, span: float) -> dict[str, Any]:
    names = [f"v100-{node}/{gpu}" for node in range(nodes) for gpu in range(8)]
    free = np.zeros(len(names))
    segments = []
    for i, row in enumerate(rows):
        held = np.argsort(free, kind="stable")[: row["gpus"]]
        start = max(float(free[held].max()), row["submitted_s"])
        for gpu in held:
            segments.append([int(gpu), start, start + float(exclusive[i]), i])
        free[held] = start + exclusive[i]
    return {"kind": "segments", "gpus": names, "jobs": [row["id"] for row in rows], "segments": segments}


def _raster(random: Any, nodes: int, span: float) -> dict[str, Any]:
    walk = (random.random((nodes, 500)) < 0.06).cumsum(axis=1) * 0.37 + random.random((nodes, 1))
    busy = np.minimum(1, (walk % 1.0) * 1.6) * (np.linspace(1.4, 0.2, 500) ** 0.5).clip(0, 1)
    rows = [f"v100-{node}" for node in range(nodes)]
    cells = (busy * 8).round().clip(0, 8) / 8
    return {"kind": "raster", "rows": rows, "t0_s": 0.0, "bin_s": span / 500, "busy": cells.tolist()}
