"""`fairway compare`: one trace, several policies, in parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.files import STDOUT, check_outputs, json_chunks, write_chunks
from fairway.cli.simulation_options import MAX_SEED, World, takes_world
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.cli.runs import SimulationRun


@takes_world
def compare(
    trace: Annotated[str, typer.Argument(help="The trace: Fairway's JSON lines or a public format", metavar="TRACE")],
    world: World,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="A policy; may be repeated. Default: all", metavar="NAME[:key=value,…]"),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs per policy, with seeds from --seed on", metavar="N")] = 1,
    html: Annotated[str | None, typer.Option("--html", help="Write a report as a web page", metavar="FILE")] = None,
    csv: Annotated[str | None, typer.Option("--csv", help="Write one row per run", metavar="FILE")] = None,
    json: Annotated[
        str | None, typer.Option("--json", help="Write all results; - is the standard output", metavar="FILE")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="Processes at a time. Default: one per core", metavar="P")
    ] = None,
) -> None:
    """Replay a trace under several policies and compare them.

    \b
    fairway compare jobs.csv --cluster v100:16x4 --policy fifo --policy las
    fairway compare jobs.csv --cluster v100:16x4 --html report.html
    fairway compare jobs.csv --cluster v100:16x4 --seeds 5 --csv runs.csv
    """
    from fairway.cli import output
    from fairway.cli.runs import run_all
    from fairway.policies.registry import files_of_knobs

    samples = [path for text in policy or () for path in files_of_knobs(text)]
    check_outputs({"--html": html, "--csv": csv, "--json": json}, [trace, *world.inputs, *samples])
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {jobs}")
    world.check_names()
    runs = plan_runs(policy or [], world.seed, seeds)
    scene = world.load(trace)
    results = run_all(scene, runs, processes=jobs, per_job=html is not None or json is not None)
    write_results(results, html=html, csv=csv)
    if json is not None:
        write_chunks(json, json_chunks(comparison_document(results)))
    if json != STDOUT:
        output.show_comparison(results)
        output.say_written(html, csv, json)
    output.say_notes(scene, results)


def plan_runs(names: Sequence[str], seed: int, seeds: int) -> list[SimulationRun]:
    """Every policy with every seed. Two spellings of the same policy would be one row twice, so they are refused."""
    from fairway.cli.runs import SimulationRun
    from fairway.policies import make_policy, policies

    if not 1 <= seeds <= MAX_SEED - seed:
        raise InputError(f"--seeds must be at least 1, not {seeds}")
    chosen = list(names) or list(policies())
    made: list[object] = []
    for name in chosen:
        policy = make_policy(name)
        if policy in made:
            raise InputError(f"--policy {name}: this policy is given twice")
        made.append(policy)
    pairs = [(name, seed + offset) for name in chosen for offset in range(seeds)]
    return [SimulationRun(index, name, each) for index, (name, each) in enumerate(pairs)]


def write_results(results: Sequence[Mapping[str, Any]], *, html: str | None, csv: str | None) -> None:
    """The page and the table."""
    from fairway.report import render_html, write_csv

    if html is not None:
        write_chunks(html, [render_html(results)])
    if csv is not None:
        write_csv(results, csv)


def comparison_document(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The document of schema `fairway.comparison/1`: a row per policy, and the results they were made from."""
    from fairway import __version__
    from fairway.report import comparison_rows

    return {
        "schema": "fairway.comparison/1",
        "fairway": __version__,
        "rows": comparison_rows(results),
        "results": list(results),
    }
