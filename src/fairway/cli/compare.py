"""`fairway compare`: one trace, or the history of a scheduler, and several policies in parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fairway.cli.files import STDOUT, check_outputs, json_chunks, write_chunks
from fairway.cli.live import At
from fairway.cli.options import option, takes
from fairway.cli.past_days import actual_document, past_days, period, scene_of_past, user_table
from fairway.cli.simulation_options import MAX_SEED, World
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.cli.runs import SimulationRun
    from fairway.cli.simulation_options import Scene
    from fairway.traces.history import JobHistory


@dataclass(frozen=True)
class ComparedWorld(World):
    """The world of a comparison. With a history it is, by default, that of the scheduler."""

    cluster: Annotated[
        str,
        option(
            "--cluster",
            "v100:32, v100:16x4 (16 nodes of 4), v100:4x8,k80:8x4, or a file. Default with --history: this machine's",
            "SPEC",
        ),
    ] = ""


@takes(world=ComparedWorld, at=At)
def compare(
    world: ComparedWorld,
    at: At,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="The trace: Fairway's JSON lines or a public format. With --history, policies instead", metavar="TRACE"
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="A policy; may be repeated. Default: all", metavar="NAME[:key=value,…]"),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option("--history", help="Instead of a trace: this scheduler's jobs since a date or for 7d", metavar="T"),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs per policy, with seeds from --seed on", metavar="N")] = 1,
    html: Annotated[str | None, typer.Option("--html", help="Write a report as a web page", metavar="FILE")] = None,
    csv: Annotated[str | None, typer.Option("--csv", help="Write one row per run", metavar="FILE")] = None,
    json: Annotated[
        str | None, typer.Option("--json", help="Write all results; - is the standard output", metavar="FILE")
    ] = None,
    promises: Annotated[
        int,
        typer.Option("--promises", help="Tell so many jobs at submission when they end; score that", metavar="N"),
    ] = 0,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="Processes at a time. Default: one per core", metavar="P")
    ] = None,
) -> None:
    """Replay a trace, or what this scheduler has done, under several policies and compare them.

    \b
    fairway compare jobs.csv --cluster v100:16x4 --policy fifo --policy las
    fairway compare jobs.csv --cluster v100:16x4 --html report.html
    fairway compare jobs.csv --cluster v100:16x4 --seeds 5 --csv runs.csv
    fairway compare jobs.csv --cluster v100:16x4 --policy srtf --promises 200
    fairway compare --history 7d srtf tiresias max_min_fairness
    """
    from fairway.policies.registry import files_of_knobs

    given = list(words or ())
    named = [*(given if history is not None else ()), *(policy or ())]
    _check_words(given, world.cluster, history)
    samples = [path for text in named for path in files_of_knobs(text)]
    inputs = [*(given if history is None else ()), *world.inputs, *samples]
    check_outputs({"--html": html, "--csv": csv, "--json": json}, inputs)
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {jobs}")
    if promises and world.rules != "native":
        raise InputError(f"--promises needs native rules, not {world.rules}")
    if promises and history is not None:
        raise InputError("--promises is for a trace, not for --history")
    if promises < 0:
        raise InputError(f"--promises must be at least 0, not {promises}")
    world.check_names()
    written = Outputs(html, csv, json)
    if history is None:
        _compared(world.load(given[0]), plan_runs(named, world.seed, seeds), jobs, written, promises)
    else:
        _compare_past(past_days(at, history), world, named, seeds, jobs, written)


class Outputs(NamedTuple):
    """The files that a comparison writes."""

    html: str | None
    csv: str | None
    json: str | None

    @property
    def per_job(self) -> bool:
        """Whether the figures of single jobs are needed."""
        return self.html is not None or self.json is not None


def _check_words(given: Sequence[str], cluster: str, history: str | None) -> None:
    if history is not None:
        return
    if not given:
        raise InputError("give a trace, or --history 7d for what this scheduler has done")
    if len(given) > 1:
        raise InputError(f"one trace at a time, not also {given[1]!r}; policies are given by --policy")
    if not cluster:
        raise InputError("--cluster is missing; give something like v100:16x4 or a file")


def _compared(scene: Scene, runs: Sequence[SimulationRun], jobs: int | None, written: Outputs, promises: int) -> None:
    from fairway.cli import output
    from fairway.cli.runs import run_all

    results = run_all(scene, runs, processes=jobs, per_job=written.per_job, promises=promises)
    _write(results, written, comparison_document(results))
    if written.json != STDOUT:
        output.show_comparison(results)
        output.say_written(*written)
    output.say_notes(scene, results)


def _compare_past(
    past: JobHistory, world: World, named: Sequence[str], seeds: int, jobs: int | None, written: Outputs
) -> None:
    """Replay a history, and show the replays beside what really happened."""
    from fairway.cli import output
    from fairway.cli.runs import run_all
    from fairway.policies import policies
    from fairway.simulator.replay import verdict, with_present

    fitting, scene = scene_of_past(past, world)
    runs = plan_runs(with_present(past, named or list(policies())), world.seed, seeds)
    replays = run_all(scene, runs, processes=jobs, per_job=written.per_job)
    results = [actual_document(fitting, per_job=written.per_job), *replays]
    best = verdict(results[0], replays)
    about = {"from_s": past.from_s, "to_s": past.to_s, "whole_from_s": past.whole_from_s, "verdict": best}
    _write(results, written, comparison_document(results) | {"history": about})
    if written.json != STDOUT:
        output.show(period(fitting))
        output.show_comparison(results)
        output.show(user_table(results))
        output.say_written(*written)
    output.say_notes(scene, results)
    if written.json != STDOUT:
        output.show(best)


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


def _write(results: Sequence[Mapping[str, Any]], written: Outputs, document: Mapping[str, Any]) -> None:
    """The page, the table and the document."""
    write_results(results, html=written.html, csv=written.csv)
    if written.json is not None:
        write_chunks(written.json, json_chunks(document))


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
