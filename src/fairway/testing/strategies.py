"""Hypothesis strategies for jobs, clusters, workloads and snapshots. The only file of Fairway that needs Hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fairway.core.cluster import Cluster
from fairway.core.job import JobSpec, Workload
from fairway.core.occupancy import Occupancy
from fairway.core.snapshot import Snapshot
from fairway.placement.packed import Packed
from fairway.testing.builders import CLUSTERS, cluster, snapshot_of

THIRDS = st.integers(0, 3000).map(lambda n: n / 3)
"""Times that binary fractions cannot hold."""


def clusters(*, mixed: bool | None = None) -> st.SearchStrategy[Cluster]:
    """Small clusters; `mixed` asks for several GPU types, or for one."""
    specs = [spec for spec in CLUSTERS if mixed is None or ("," in spec) == mixed]
    return st.sampled_from(specs).map(cluster)


@st.composite
def jobs(draw: st.DrawFn, where: Cluster, name: str = "a", latest_s: float = 1000.0) -> JobSpec:
    """A job that can run on this cluster."""
    counts = {gpu.name: int(where.gpus_by_type[kind]) for kind, gpu in enumerate(where.types)}
    names = draw(st.sampled_from([(), (), *((name,) for name in counts)])) if len(counts) > 1 else ()
    largest = counts[names[0]] if names else max(counts.values())
    gpus = draw(st.integers(1, largest))
    low, high = draw(st.sampled_from([(gpus, gpus), (gpus, gpus), (1, largest)]))
    return JobSpec(
        id=name,
        submitted_s=min(draw(THIRDS), latest_s),
        gpus=gpus,
        gpus_min=low,
        gpus_max=high,
        duration_s=draw(THIRDS),
        user=draw(st.sampled_from(["ann", "bob"])),
        weight=draw(st.sampled_from([0.5, 1.0, 3.0])),
        gpu_types=names,
    )


@st.composite
def workloads(draw: st.DrawFn, where: Cluster, *, max_jobs: int = 8) -> Workload:
    """A few jobs that can all run on this cluster."""
    count = draw(st.integers(1, max_jobs))
    return Workload.of([draw(jobs(where, name=f"job-{index}")) for index in range(count)])


@st.composite
def snapshots(draw: st.DrawFn, /, *, max_jobs: int = 10, **about: Any) -> Snapshot:
    """An instant at which some jobs run, some wait, and some started a moment ago."""
    where = draw(clusters(mixed=about.pop("mixed", None)))
    count = draw(st.integers(0, max_jobs))
    specs = [draw(jobs(where, name=f"job-{index}")) for index in range(count)]
    occupancy, running, attained = Occupancy(where), {}, {}
    for spec in specs:
        attained[spec.id] = min(draw(st.sampled_from([0.0, 0.0, 10.0, 100 / 3])), 0.9 * (spec.duration_s or 0.0))
        kinds = [k for k, gpu in enumerate(where.types) if not spec.gpu_types or gpu.name in spec.gpu_types]
        gpus = Packed().place(occupancy, spec.gpus, draw(st.sampled_from(kinds)))
        if gpus is not None and draw(st.booleans()):
            occupancy.take(gpus)
            running[spec.id] = gpus
    about.setdefault("min_run_s", draw(st.sampled_from([0.0, 60.0])))
    return snapshot_of(specs, where, now_s=1100.0, running=running, attained=attained, **about)
