"""`fairway lab forecast`: the errors of forecasts of how long jobs that change their batch size will still run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.core.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from fairway.cli.lab.forecast_error import Replay, Stretch
    from fairway.core.job import JobSpec, Workload
    from fairway.models.forecast import Method

MOST_POINTS = 10_000
SHOWN_POINTS = 10
_ABOUT = {
    "restatement": "what is over is known, the rest split evenly over the stages ahead",
    "bayes": "posterior over batch sizes, as in Shockwave's artifact",
    "reactive": "goes on at the present batch size",
    "agnostic": "goes on at the first batch size",
}


def forecast(
    trace: Annotated[str, typer.Argument(help="A trace file in any known format", metavar="TRACE")],
    profile: Annotated[
        str | None, typer.Option("--profile", help="Throughputs: Gavel's JSON. Default: estimates", metavar="PATH")
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", help="GPU types; a job is timed on the best for it", metavar="SPEC")
    ] = "v100:64x8",
    jobs: Annotated[str | None, typer.Option("--jobs", help="Only these jobs", metavar="ID,ID,…")] = None,
    job: Annotated[str | None, typer.Option("--job", help="Show one job's stages and forecasts", metavar="ID")] = None,
    points: Annotated[
        int, typer.Option("--points", help="How often each job is forecast, at equal steps of run time", metavar="N")
    ] = 100,
    trace_format: Annotated[
        str | None, typer.Option("--format", help="The trace's format, if its content is ambiguous", metavar="NAME")
    ] = None,
    json: Annotated[str | None, typer.Option("--json", help="Write the figures; - is stdout", metavar="FILE")] = None,
    plot: Annotated[
        str | None, typer.Option("--plot", help="Draw the errors over training", metavar="FILE.svg")
    ] = None,
) -> None:
    """Measure the errors of forecasts of run times.

    Each job goes through the batch sizes that are laid down for it, and every rule forecasts its end on the way.

    \b
    fairway lab forecast shockwave.trace --profile tacc_throughputs.json
    fairway lab forecast shockwave.trace --profile tacc_throughputs.json --job 0
    """
    from fairway.cli import files, output

    if not 1 <= points <= MOST_POINTS:
        raise InputError(f"--points must be from 1 to {MOST_POINTS}, not {points}")
    if job is not None and jobs is not None:
        raise InputError("--job and --jobs exclude one another")
    files.check_outputs({"--json": json, "--plot": plot}, [path for path in (trace, profile, cluster) if path])
    wanted = [job] if job is not None else jobs.split(",") if jobs is not None else None
    workload, courses, skipped = _courses(trace, trace_format, profile, cluster, wanted)
    if job is None:
        document = _figures(workload, courses, points)
        document |= {"trace": trace, "profile": profile or "built-in", "skipped": skipped}
    else:
        document = _one_job(next(each for each in workload.jobs if each.id == job), courses[job], points)
    if plot is not None:
        files.write_chunks(plot, [_drawn(document)])
    if json is not None:
        files.write_chunks(json, files.json_chunks(document))
    if json != files.STDOUT:
        output.show(*(_shown(document) if job is None else _job_shown(document)))
        output.say_written(plot, json)
    if skipped:
        output.say("warning", f"{output.count(skipped, 'job')} left out: no GPU type of {cluster} can run them")


def _courses(
    trace: str, trace_format: str | None, profile: str | None, cluster: str, wanted: list[str] | None
) -> tuple[Workload, dict[str, list[Stretch]], int]:
    """The true courses of the jobs wanted, by id, and how many jobs cannot run on any GPU type."""
    from fairway.cli.lab.forecast_error import stretches_of
    from fairway.models.profile import load_profile
    from fairway.simulator.rates import Rates, impossible
    from fairway.traces import read_cluster, read_trace

    machines, table = read_cluster(cluster), load_profile(profile)
    workload = read_trace(trace, format=trace_format)
    rates = Rates(machines, table, spread_matters=False, adapts="regimes")
    chosen = _chosen(workload, wanted, trace)
    runnable = [spec for spec in chosen if impossible(spec, rates) is None]
    courses = {spec.id: stretches_of(rates.prospect(spec), rates.regimes(spec)) for spec in runnable}
    courses = {name: course for name, course in courses.items() if course}
    if not courses:
        raise InputError(f"no job can run on {cluster}", path=trace)
    return workload, courses, len(chosen) - len(courses)


def _chosen(workload: Workload, wanted: list[str] | None, trace: str) -> list[JobSpec]:
    by_id = {spec.id: spec for spec in workload.jobs}
    names = list(by_id) if wanted is None else list(dict.fromkeys(wanted))
    for name in names:
        if name not in by_id:
            raise InputError(f"there is no job {name!r}", path=trace)
    if not names:
        raise InputError("there are no jobs", path=trace)
    return [by_id[name] for name in names]


def _figures(workload: Workload, courses: dict[str, list[Stretch]], points: int) -> dict[str, Any]:
    """What is printed, under the names of the JSON document: scores by group of jobs, and the curves."""
    from fairway.cli.lab.forecast_error import error_curve, replays, scores

    specs = [spec for spec in workload.jobs if spec.id in courses]
    found = replays([courses[spec.id] for spec in specs], points)
    groups: dict[str, list[int]] = {"all": list(range(len(specs)))}
    for number, spec in enumerate(specs):
        if len(courses[spec.id]) > 1:
            groups.setdefault("changing", []).append(number)
    for number in groups.get("changing", ()):
        groups.setdefault(specs[number].adaptation, []).append(number)

    def of(numbers: list[int]) -> dict[Method, list[Replay]]:
        return {method: [several[number] for number in numbers] for method, several in found.items()}

    drawn = "changing" if "changing" in groups else "all"
    return {
        "points": points,
        "groups": {
            name: {method: result._asdict() for method, result in scores(of(numbers)).items()}
            for name, numbers in groups.items()
        },
        "curve_of": drawn,
        "curves": {method: error_curve(several) for method, several in of(groups[drawn]).items()},
    }


def _one_job(spec: JobSpec, course: list[Stretch], points: int) -> dict[str, Any]:
    from fairway.cli.lab.forecast_error import replays, score

    found = {method: several[0] for method, several in replays([course], points).items()}
    truth = found["restatement"]
    return {
        "job": spec.id,
        "model": spec.model,
        "adaptation": spec.adaptation,
        "gpus": spec.gpus,
        "epochs": sum(each.epochs for each in course),
        "run_s": truth.run_s,
        "stages": [each._asdict() for each in course],
        "elapsed_s": (truth.run_s - truth.true_s).tolist(),
        "remaining_s": truth.true_s.tolist(),
        "forecasts": {
            method: {
                "relative": score([each]).relative,
                "remaining_s": each.predicted_s.tolist(),
                "spread_s": each.spread_s.tolist(),
            }
            for method, each in found.items()
        },
    }


def _drawn(document: dict[str, Any]) -> str:
    from fairway.report.line_chart import Axis, line_chart

    done = Axis("part of the run time that is over", " %", 100.0, 100.0)
    if "groups" in document:
        points, many = document["points"], document["groups"][document["curve_of"]]["restatement"]["jobs"]
        lines = {
            method: [(at / points, error) for at, error in enumerate(curve)]
            for method, curve in document["curves"].items()
        }
        which = "that change their batch size" if document["curve_of"] == "changing" else "in all"
        name = "mean absolute error of the remaining time, as a part of the job's run time"
        return line_chart(f"Forecasts of {many} jobs {which}", lines, done, Axis(name, " %", 100.0))
    run_s, elapsed_s = document["run_s"], document["elapsed_s"]
    lines = {
        method: [
            (spent_s / run_s, spent_s + left_s) for spent_s, left_s in zip(elapsed_s, each["remaining_s"], strict=True)
        ]
        for method, each in document["forecasts"].items()
    }
    lines["truth"] = [(spent_s / run_s, run_s) for spent_s in elapsed_s]
    return line_chart(f"Job {document['job']}: {document['model']}", lines, done, Axis("expected run time, seconds"))


def _shown(document: dict[str, Any]) -> list[Table]:
    import rich.box
    from rich.table import Table

    from fairway.cli import output

    jobs = " · ".join(f"{name} {of['restatement']['jobs']:,}" for name, of in document["groups"].items())
    about = [
        ("trace", f"{document['trace']} (profile {document['profile']})"),
        ("jobs", jobs),
        ("forecast", f"at {output.count(document['points'], 'point')} of each job's run time alone"),
    ]
    table = Table(box=rich.box.SIMPLE)
    for name in ("jobs", "rule", "", "mean error", "of run time", "bias", "within 1 spread", "within 2"):
        table.add_column(name, justify="left" if name in ("jobs", "rule", "") else "right")
    for group, of in document["groups"].items():
        for number, (method, each) in enumerate(of.items()):
            errors = [output.duration(each["mae_s"]), output.percent(each["relative"]), f"{100 * each['bias']:+.1f} %"]
            within = [output.percent(each["within_one"]), output.percent(each["within_two"])]
            table.add_row("" if number else group, method, _ABOUT[method], *errors, *within)
    return [output.pairs_table(about), table]


def _job_shown(document: dict[str, Any]) -> list[Table]:
    import rich.box
    from rich.table import Table

    from fairway.cli import output

    stages = " → ".join(
        f"{each['batch_size'] or 'unknown'} ({each['epochs']:.1f} epochs of {output.duration(each['epoch_s'])})"
        for each in document["stages"]
    )
    about = [
        ("job", f"{document['job']}: {document['model']} · {document['adaptation']}"),
        ("GPUs", f"{document['gpus']}"),
        ("batch sizes", f"{stages}; announced are their order and the {document['epochs']:g} epochs, not when"),
        ("run time alone", output.duration(document["run_s"])),
    ]
    table = Table(box=rich.box.SIMPLE)
    for name in ("done", "truly left", *document["forecasts"]):
        table.add_column(name, justify="right")
    many = len(document["elapsed_s"])
    for at in sorted({at * many // SHOWN_POINTS for at in range(SHOWN_POINTS)}):
        cells = [output.percent(document["elapsed_s"][at] / document["run_s"])]
        cells.append(output.duration(document["remaining_s"][at]))
        for each in document["forecasts"].values():
            spread_s = each["spread_s"][at]
            spread = f" ±{output.duration(spread_s)}" if spread_s else ""
            cells.append(output.duration(each["remaining_s"][at]) + spread)
        table.add_row(*cells)
    errors = [output.percent(each["relative"]) for each in document["forecasts"].values()]
    table.add_section()
    table.add_row("mean error", "", *errors)
    return [output.pairs_table(about), table]
