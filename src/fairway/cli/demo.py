"""`fairway demo`: all policies on a generated workload, or (`--live`) a few real jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairway.cli.compare import plan_runs, write_results
from fairway.cli.live import program
from fairway.cli.simulate import write_timeline_of
from fairway.cli.simulation_options import World, check_seed
from fairway.core.errors import InputError

CLUSTER, GPUS, LOAD, USERS = "v100:8x4", 32, 1.1, 8
MOST_JOBS = 1_000_000
LONGEST_H = 12.0
"""The longest job. Without this limit one job of weeks would be most of the work of such a short trace."""


def demo(
    live: Annotated[
        bool, typer.Option("--live", help="Run a few small real jobs instead, and compare with a forecast")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="How many jobs. Default: 300, or 12 with --live", metavar="N")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the workload", metavar="N")] = 0,
    out: Annotated[str, typer.Option("--out", help="Directory for the files", metavar="DIR")] = "out/demo",
) -> None:
    """Compare all policies on a generated workload.

    The workload is shaped like that of Microsoft's Philly cluster. A report is written, too.

    With --live: a dozen real trainings (plain Python) on 4 virtual GPUs, stopped and resumed by the scheduler.

    \b
    fairway demo --jobs 1000 --seed 7 --out /tmp/demo
    fairway demo --live
    """
    check_seed(seed)
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise InputError(f"--jobs {jobs} is not from 1 to {MOST_JOBS}")
    if live:
        from fairway.cli.live_demo import JOBS, live_demo

        live_demo(JOBS if jobs is None else jobs, seed, _folder(out))
    else:
        _simulated_demo(300 if jobs is None else jobs, seed, out)


def _simulated_demo(jobs: int, seed: int, out: str) -> None:
    from fairway.cli import output
    from fairway.cli.runs import run_all
    from fairway.report import comparison_rows
    from fairway.traces import generate, write_trace

    workload = generate("philly-like", jobs=jobs, seed=seed, gpus=GPUS, load=LOAD, users=USERS, longest_h=LONGEST_H)
    folder = _folder(out)
    trace, page = str(folder / "trace.jsonl"), str(folder / "report.html")
    write_trace(workload, trace)
    scene = World(cluster=CLUSTER, seed=seed).load(trace)
    results = run_all(scene, plan_runs([], seed, 1), processes=None, per_job=True)
    best = min(comparison_rows(results), key=lambda row: row["jct_mean_s"])["policy"]
    timeline = str(folder / f"{best}.perfetto.json")
    write_results(results, html=page, csv=str(folder / "results.csv"))
    write_timeline_of(scene.run(best, seed), timeline)
    typer.echo(f"{output.count(jobs, 'job')} of {USERS} users, shaped like Philly's (seed {seed}), on {GPUS} V100 GPUs")
    output.show_comparison(results)
    output.say_notes(scene, results)
    name = program()
    typer.echo(
        f"report    {page}    (open it in a browser)\n"
        f"timeline  {timeline}    (open it at ui.perfetto.dev)\n"
        f"\nnext\n"
        f"  {name} policies\n"
        f"  {name} simulate {trace} --cluster {CLUSTER} --policy las:levels=1800/7200\n"
        f"  {name} compare {trace} --cluster v100:4x8,k80:4x8 --html {folder / 'mixed.html'}"
    )


def _folder(out: str) -> Path:
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: the directory cannot be created: {error.strerror or error}") from None
    return folder
