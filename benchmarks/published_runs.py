"""The published comparisons of Shockwave (NSDI'23) and Gavel (OSDI'20), run again: our figures beside theirs.

    python benchmarks/published_runs.py shockwave TRACE PROFILE [--policies P+P] [--json FILE]
    python benchmarks/published_runs.py gavel TRACE PROFILE [--cluster C] [--policies P+P] [--json FILE]

`shockwave` is the trace of 120 jobs on 32 V100s: under the rules of its simulator, under the same without a limit on
how often plans are made, and under native rules. `gavel` is a trace on mixed GPUs under Gavel's rules and under native
ones. Published figures are of two kinds: those of the authors' result files, and those of their public simulators
where they have published no result (marked with a star).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

import fairway
from fairway import Workload
from fairway.models.profile import Profile, load_profile
from fairway.policies import policies
from fairway.traces import read_trace


class Figures(NamedTuple):
    """What a simulator printed of a run; `own` where its authors published no result and it was run for this."""

    makespan_s: float
    mean_jct_s: float
    worst_rho: float | None = None
    unfair: float | None = None
    utilisation: float | None = None
    rounds: int | None = None
    own: bool = False


AGNOSTIC = "heterogeneity=agnostic"

SHOCKWAVE = {
    f"max_min_fairness:{AGNOSTIC}": Figures(33207.7, 11274.1, 2.9470, 0.2500, 0.5949, 277),
    f"min_makespan:{AGNOSTIC}": Figures(24204.8, 19806.7, 7.7415, 0.7417, 0.8161, 204),
    "max_throughput": Figures(31909.0, 9654.7, 4.9758, 0.2500, 0.6191, 266),
    "gandiva_fair": Figures(32367.4, 12574.3, 1.8536, 0.5167, 0.6105, 270),
    "allox": Figures(32488.6, 9926.3, 4.9635, 0.2750, 0.6081, 271),
    "finish_time_fairness": Figures(31928.7, 11302.0, 3.4376, 0.2250, 0.6187, 267),
    "isolated": Figures(33207.7, 11267.9, 2.9470, 0.2500, 0.5949, 277, own=True),
    f"gavel_fifo:{AGNOSTIC}": Figures(33308.4, 10816.3, 5.7686, 0.3417, 0.5930, 278, own=True),
    "themis": None,
    "water_filling": None,
}
"""By policy, the result files `tacc_32gpus` of the Shockwave artifact."""

SHOCKWAVE_AT_ONCE = {
    f"max_min_fairness:{AGNOSTIC}": Figures(31888.2, 9245.9, 3.2573, 0.1667, 0.6196, 266, own=True),
    f"min_makespan:{AGNOSTIC}": Figures(23441.8, 19325.7, 7.4599, 0.7417, 0.8428, 201, own=True),
    "max_throughput": Figures(31428.8, 8893.4, 4.7187, 0.2250, 0.6287, 262, own=True),
    "gandiva_fair": Figures(31648.1, 12112.2, 2.1900, 0.3833, 0.6243, 264, own=True),
    "allox": Figures(31288.7, 9020.2, 4.4466, 0.2667, 0.6313, 261, own=True),
}
"""The same simulator without its limit of 1,000 s between two plans."""

GAVEL_SINGLE = {
    "max_min_fairness": Figures(80026.4, 25576.3, utilisation=0.554, own=True),
    f"max_min_fairness:{AGNOSTIC}": Figures(100845.8, 34395.0, utilisation=0.569, own=True),
    "min_makespan": Figures(76368.6, 31854.2, utilisation=0.669, own=True),
    f"min_makespan:{AGNOSTIC}": Figures(99933.5, 34924.4, utilisation=0.573, own=True),
    "finish_time_fairness": Figures(80339.9, 27236.4, utilisation=0.576, own=True),
    f"finish_time_fairness:{AGNOSTIC}": Figures(98936.1, 34440.1, utilisation=0.578, own=True),
    "max_throughput": Figures(93153.6, 25549.2, utilisation=0.481, own=True),
    "gavel_fifo": Figures(87309.0, 25971.1, utilisation=0.515, own=True),
    "allox": Figures(86340.3, 25212.8, utilisation=0.505, own=True),
    "isolated": Figures(101002.6, 34392.8, utilisation=0.569, own=True),
}
GAVEL_MULTI = {
    "max_min_fairness": Figures(120552.8, 26950.0, utilisation=0.668, own=True),
    f"max_min_fairness:{AGNOSTIC}": Figures(144428.5, 36086.0, utilisation=0.639, own=True),
    "min_makespan": Figures(101880.0, 47233.8, utilisation=0.840, own=True),
    f"min_makespan:{AGNOSTIC}": Figures(131921.5, 42362.7, utilisation=0.698, own=True),
    "finish_time_fairness": Figures(119491.6, 29187.6, utilisation=0.683, own=True),
    "max_throughput": Figures(123281.5, 29184.2, utilisation=0.625, own=True),
    "gavel_fifo": Figures(127658.2, 29970.3, utilisation=0.609, own=True),
    "isolated": Figures(143558.3, 35658.5, utilisation=0.643, own=True),
}
"""Gavel's simulator on its own generator's traces of 200 jobs, one in 180 s of one GPU, or one in 300 s of 1 to 4."""

Published = dict[str, Figures] | dict[str, Figures | None]


class Setting(NamedTuple):
    """A table: the rules, what else is given to the simulation, and the figures to compare with."""

    title: str
    rules: str
    options: dict[str, Any]
    published: Published


def measure(workload: Workload, profile: Profile, cluster: str, policy: str, setting: Setting) -> dict[str, Any]:
    """One run."""
    before_s = time.process_time()
    result = fairway.simulate(
        workload, cluster=cluster, policy=policy, profile=profile, rules=setting.rules, **setting.options
    )
    figures = result.figures()
    rho = figures["ftf"]["static"]
    known = setting.published.get(policy)
    return {
        "policy": policy,
        "makespan_s": figures["makespan_s"],
        "mean_jct_s": figures["jct_s"]["mean"],
        "worst_rho": rho["worst"],
        "unfair": rho["unfair_fraction"],
        "utilisation": figures["utilisation"],
        "rounds": figures["rounds"],
        "cpu_s": time.process_time() - before_s,
        "published": known._asdict() if known else None,
    }


def show(console: Console, title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Ours, and theirs where there is something."""
    table = Table(title=title)
    table.add_column("policy")
    for heading in ("makespan s", "theirs", "mean JCT s", "theirs", "worst rho", "theirs", "unfair", "theirs"):
        table.add_column(heading, justify="right")
    for heading in ("utilisation", "theirs", "rounds", "CPU s"):
        table.add_column(heading, justify="right")
    for row in rows:
        theirs = row["published"] or {}
        star = "*" if theirs.get("own") else ""
        cells = [row["policy"] + star]
        for name, form in FORMS.items():
            cells.append(form.format(row[name]))
            cells.append("" if theirs.get(name) is None else form.format(theirs[name]))
        table.add_row(*cells, str(row["rounds"]), f"{row['cpu_s']:.1f}")
    console.print(table)


FORMS = {
    "makespan_s": "{:,.1f}",
    "mean_jct_s": "{:,.1f}",
    "worst_rho": "{:.4f}",
    "unfair": "{:.2%}",
    "utilisation": "{:.4f}",
}


def settings_of(given: argparse.Namespace, workload: Workload) -> tuple[str, list[Setting]]:
    """The cluster, and the tables of a comparison."""
    if given.comparison == "shockwave":
        tables = [
            Setting("rules of Shockwave's simulator", "shockwave", {}, SHOCKWAVE),
            Setting(
                "the same, plans whenever jobs come or go", "shockwave", {"replan_interval_s": 0.0}, SHOCKWAVE_AT_ONCE
            ),
            Setting("native rules", "native", {}, {}),
        ]
        return given.cluster or "v100:32", tables
    published = GAVEL_MULTI if any(job.gpus > 1 for job in workload.jobs) else GAVEL_SINGLE
    tables = [
        Setting("rules of Gavel's simulator", "gavel", {}, published),
        Setting("native rules", "native", {}, {}),
    ]
    return given.cluster or "v100:36,p100:36,k80:36", tables


def main() -> None:
    """Run a comparison and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("comparison", choices=("shockwave", "gavel"))
    parser.add_argument("trace")
    parser.add_argument("profile")
    parser.add_argument("--cluster")
    parser.add_argument("--policies", help="joined by +; else those of the published comparison")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    workload, profile = read_trace(given.trace), load_profile(given.profile)
    cluster, tables = settings_of(given, workload)
    known = policies()
    names = given.policies.split("+") if given.policies else [*tables[0].published]
    runs = [(table, name) for table in tables for name in names if name.split(":")[0] in known]
    rows: dict[str, list[dict[str, Any]]] = {table.title: [] for table in tables}
    for table, name in track(runs, description="runs", console=Console(stderr=True)):
        rows[table.title].append(measure(workload, profile, cluster, name, table))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    for title, found in rows.items():
        show(Console(width=190), f"{Path(given.trace).stem}, {cluster}: {title}", found)


if __name__ == "__main__":
    main()
