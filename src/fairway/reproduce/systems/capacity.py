"""Capacity scheduling: the example of its page. Its runs on the Philly trace are with those of Tiresias."""

from __future__ import annotations

from fairway.core.job import JobSpec, Workload
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.simulator.rules import Rules
from fairway.simulator.run import simulate

JOBS = (
    ("a1", 2, 100.0, 0.0, "A"),
    ("a2", 2, 60.0, 0.0, "A"),
    ("a3", 2, 50.0, 1.0, "A"),
    ("a4", 1, 30.0, 2.0, "A"),
    ("b1", 1, 40.0, 3.0, "B"),
    ("b2", 2, 20.0, 4.0, "B"),
)
"""Job, GPUs, seconds, submitted at, queue."""
ENDS_S = {
    "capacity": (100.0, 60.0, 150.0, 150.0, 100.0, 120.0),
    "fifo": (100.0, 60.0, 110.0, 130.0, 140.0, 130.0),
}
"""When these jobs end, by hand."""


def example(_: Setting) -> Findings:
    """Four GPUs and two queues."""
    specs = [JobSpec(name, at_s, gpus, duration_s=lasts_s, queue=queue) for name, gpus, lasts_s, at_s, queue in JOBS]
    equal, rows = 0, []
    for policy, wanted_s in ENDS_S.items():
        result = simulate(Workload.of(specs), cluster="v100:4", policy=policy, rules=Rules("flat"))
        ends_s = (result.jct_s + result.submitted_s).tolist()
        equal += sum(abs(end - wanted) < 1e-6 for end, wanted in zip(ends_s, wanted_s, strict=True))
        rows.append((f"`{policy}`", *(f"{end:g}" for end in ends_s)))
    what = "ends of six jobs under `capacity` and `fifo` that are right"
    table = ResultTable(("ends at, s", *(job[0] for job in JOBS)), tuple(rows))
    return Findings((Figure(what, 12, equal, Yardstick.equal(0), decimals=0),), {"ends": table})


CASES = (
    Case(
        "capacity-example",
        "Capacity scheduling",
        "two queues by hand",
        "Vavilapalli et al., SoCC'13; derived by hand",
        "capacity.md",
        example,
        0.3,
        0.3,
    ),
)
