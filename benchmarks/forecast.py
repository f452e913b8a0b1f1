"""Forecasts of the remaining time of jobs that change their batch size: errors by rule, over training, and the cost.

    python benchmarks/forecast.py TRACE... --profile FILE [--cluster v100:64x8] [--points 100] [--picture FILE.svg]

Every job goes through the batch sizes that are laid down for its model, alone and without interruptions, and is
forecast at equal steps of its run time. *as laid down*: its owner announces exactly the stages that come. *whole
ladder*: a GNS job announces every doubling up to the largest batch size of its model, of which a short job reaches
only some. Errors are relative to the run time of each job. *ahead of reactive* is the part of the changing jobs on
which a rule errs less than `reactive`, *behind* on which it errs more. The picture shows the changing jobs as laid
down. Cost is the CPU time of one call.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fairway import JobSpec
from fairway.cli.lab.forecast_error import Replay, Stretch, error_curve, replays, score, stretches_of, training_at
from fairway.core.errors import InputError
from fairway.core.job import Regime
from fairway.models.adaptation import course_of
from fairway.models.forecast import METHODS, forecast
from fairway.models.profile import load_profile
from fairway.report.line_chart import Axis, line_chart
from fairway.simulator.rates import Rates
from fairway.traces import read_cluster, read_trace


def ladder(spec: JobSpec, rates: Rates, course: list[Stretch]) -> list[Stretch]:
    """The stages of a job as they come, and after them the doublings that it would make if it went on."""
    laid_down = course_of(spec)
    if laid_down is None or not laid_down.doublings:
        return course
    stages = list(course)
    while 2 * stages[-1].batch_size <= laid_down.largest:
        grown = 2 * stages[-1].batch_size
        try:
            speed = max(rates.regime_speeds(spec, Regime(1.0, grown)))
        except InputError:
            speed = 0.0
        if not speed:
            break
        first_s = course[0].epoch_s * max(rates.speeds(spec, spec.batch_size))
        stages.append(Stretch(grown, 0.0, first_s / speed))
    return stages


def groups_of(specs: Sequence[JobSpec], courses: Sequence[Sequence[Stretch]]) -> dict[str, list[int]]:
    """The jobs by how they adapt, those apart that ever change."""
    changing = [at for at, course in enumerate(courses) if len(course) > 1]
    by_kind = {kind: [at for at in changing if specs[at].adaptation == kind] for kind in ("gns", "accordion")}
    found = {"all": list(range(len(specs))), "changing": changing, **by_kind}
    return {name: numbers for name, numbers in found.items() if numbers}


def table_of(found: dict[Any, list[Replay]], groups: dict[str, list[int]], announced: str) -> list[dict[str, Any]]:
    """One record per group and rule."""
    rows = []
    for group, numbers in groups.items():
        mine = {method: [several[at] for at in numbers] for method, several in found.items()}
        errors = {method: np.array([score([each]).relative for each in several]) for method, several in mine.items()}
        for method, several in mine.items():
            gain = errors["reactive"] - errors[method]
            rows.append(
                {"announced": announced, "group": group, "rule": method}
                | score(several)._asdict()
                | {"ahead": float((gain > 1e-9).mean()), "behind": float((gain < -1e-9).mean())}
                | {"worst": float(errors[method].max())}
            )
    return rows


def cost_us(course: Sequence[Stretch], repeats: int = 20_000) -> dict[str, float]:
    """Microseconds of CPU for one call in the middle of a training, by rule."""
    training = training_at(course, 0.5 * sum(each.epochs * each.epoch_s for each in course))
    epoch_s, found = [each.epoch_s for each in course], {}
    for method in METHODS:
        before_s = time.process_time()
        for _ in range(repeats):
            forecast(training, epoch_s, method)
        found[method] = 1e6 * (time.process_time() - before_s) / repeats
    return found


def picture(found: dict[Any, list[Replay]], numbers: Sequence[int], points: int) -> str:
    """The errors of some jobs over training, one line per rule."""
    lines = {}
    for method, several in found.items():
        curve = error_curve([several[at] for at in numbers])
        lines[method] = [(at / points, error) for at, error in enumerate(curve)]
    title = f"Forecasts of {len(numbers)} jobs that change their batch size"
    error = Axis("mean absolute error of the remaining time, as a part of the job's run time", " %", 100.0)
    return line_chart(title, lines, Axis("part of the run time that is over", " %", 100.0, 100.0), error)


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A table of the records."""
    table = Table()
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right", no_wrap=True)
    for row in rows:
        cells = {name: "–" if value is None else value for name, value in row.items()}
        for name in ("relative", "bias", "unsure", "within_one", "within_two", "ahead", "behind", "worst"):
            if row[name] is not None:
                cells[name] = f"{100 * row[name]:.1f} %"
        cells["mae_s"] = f"{row['mae_s']:,.1f}"
        table.add_row(*(str(cell) for cell in cells.values()))
    Console(width=190).print(table)


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--profile")
    parser.add_argument("--cluster", default="v100:64x8")
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--picture", metavar="FILE.svg")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rates = Rates(read_cluster(args.cluster), load_profile(args.profile), spread_matters=False, adapts="regimes")
    specs = [spec for trace in args.traces for spec in read_trace(trace).jobs]
    courses = [stretches_of(rates.prospect(spec), rates.regimes(spec)) for spec in specs]
    specs = [spec for spec, course in zip(specs, courses, strict=True) if course]
    courses = [course for course in courses if course]
    groups = groups_of(specs, courses)
    found = replays(courses, args.points)
    rows = table_of(found, groups, "as laid down")
    told = [ladder(spec, rates, course) for spec, course in zip(specs, courses, strict=True)]
    gns = {name: numbers for name, numbers in groups.items() if name in ("all", "gns")}
    rows += table_of(replays(courses, args.points, told), gns, "whole ladder")
    costs = cost_us(max(courses, key=len))
    if args.picture:
        Path(args.picture).write_text(picture(found, groups.get("changing", groups["all"]), args.points))
    if args.json:
        print(json.dumps({"scores": rows, "cost_us": costs}))
        return 0
    show(rows)
    print("microseconds of CPU per call: " + ", ".join(f"{name} {each:.1f}" for name, each in costs.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
