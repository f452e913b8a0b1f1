"""`fairway lab size`: how many nodes would keep a cluster well used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.core.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table


def size(
    trace: Annotated[str, typer.Argument(help="Jobs that carry a model of their goodput", metavar="TRACE")],
    cluster: Annotated[
        str, typer.Option("--cluster", help="The largest cluster to think of, of nodes that are alike", metavar="SPEC")
    ],
    band: Annotated[
        str, typer.Option("--band", help="The utility to keep: the least and the most, in percent", metavar="X-Y")
    ] = "35-65",
    at: Annotated[
        str | None,
        typer.Option("--at", help="Look at the jobs of this time. Default: when most GPUs are wanted", metavar="T"),
    ] = None,
    rules: Annotated[str, typer.Option("--rules", help="How jobs train: native or pollux", metavar="NAME")] = "native",
    profile: Annotated[
        str | None, typer.Option("--profile", help="Measured applications, for --rules pollux", metavar="PATH")
    ] = None,
    json: Annotated[str | None, typer.Option("--json", help="Write the figures; - is stdout", metavar="FILE")] = None,
) -> None:
    """Say how many nodes would keep the utility of a cluster within a band.

    The utility is the sum of the speedups of all jobs over one GPU, per GPU. It is 100 % if each GPU is as useful as a
    first one, and falls as nodes are added. The jobs are those that would run at one time if none had to wait.

    \b
    fairway lab size jobs.jsonl --cluster t4:32x4
    fairway lab size jobs.jsonl --cluster t4:32x4 --band 40-60 --at 4h --json -
    fairway lab size w.csv --cluster aws:9x4 --rules pollux --profile profiles
    """
    from fairway.cli import files, output

    inputs = [trace, *([] if profile is None else [profile])]
    files.check_outputs({"--json": json}, inputs)
    document = _figures(trace, cluster, _band(band), at, rules, profile)
    if json is not None:
        files.write_chunks(json, files.json_chunks(document))
    if json != files.STDOUT:
        output.show(*_shown(document))


def _band(text: str) -> tuple[float, float]:
    """The least and the most utility, from percentages such as 35-65."""
    low, dash, high = text.partition("-")
    try:
        found = float(low) / 100.0, float(high) / 100.0
    except ValueError:
        found = (1.0, 0.0)
    if not dash or not 0 <= found[0] <= found[1] <= 10:
        raise InputError(f"--band {text!r} is not a range of percentages such as 35-65")
    return found


def _figures(
    trace: str, cluster: str, band: tuple[float, float], at: str | None, rules: str, profile: str | None
) -> dict[str, Any]:
    """What is printed, under the names of the JSON document."""
    from fairway.core.units import duration_s
    from fairway.models.profile import load_profile
    from fairway.simulator.engines import rates_of
    from fairway.simulator.rates import impossible
    from fairway.simulator.rules import rules_named
    from fairway.simulator.sizing import active_jobs, sizes_for
    from fairway.traces import read_cluster, read_trace

    workload, machines = read_trace(trace), read_cluster(cluster)
    if len({(node.gpu_type, node.gpus) for node in machines.nodes}) > 1:
        raise InputError(f"the nodes of {cluster} are not all alike")
    rates = rates_of(rules_named(rules), machines, load_profile(profile), workload.jobs)
    possible = [job for job in workload.jobs if impossible(job, rates) is None]
    if not possible:
        raise InputError(f"no job can run on {cluster}", path=trace)
    jobs, at_s = active_jobs(possible, rates, None if at is None else duration_s(at))
    sizes, tried = sizes_for(jobs, rates, machines, band)
    return {
        "trace": workload.source or trace,
        "impossible": len(workload.jobs) - len(possible),
        "at_s": at_s,
        "jobs": len(jobs),
        "adaptive": sum(rates.limits(job) is not None for job in jobs),
        "node_gpus": machines.nodes[0].gpus,
        "band": list(band),
        "fewest": sizes.fewest,
        "nearest": sizes.nearest,
        "most": sizes.most,
        "in_band": any(band[0] <= one.utility <= band[1] for one in tried if one.nodes == sizes.nearest),
        "tried": [one._asdict() for one in tried],
    }


def _shown(document: dict[str, Any]) -> list[Table]:
    import rich.box
    from rich.table import Table

    from fairway.cli import output

    low, high = (output.percent(edge) for edge in document["band"])
    fewest, most, nearest = document["fewest"], document["most"], document["nearest"]
    size = f" of {output.count(document['node_gpus'], 'GPU')}"
    answer = f"{output.count(nearest, 'node')}{size}"
    if not document["in_band"]:
        answer += "; no size is within the band, this one is nearest"
    elif fewest < most:
        answer = f"{fewest} to {most} nodes{size}; {nearest} nearest to the middle of the band"
    jobs = f"{document['jobs']:,} at {output.duration(document['at_s'])}, {document['adaptive']:,} adaptive"
    if document["impossible"]:
        jobs += f"; left out because they never fit: {document['impossible']:,}"
    about = output.pairs_table(
        [
            ("jobs", jobs),
            ("utility", f"{low} to {high}"),
            ("cluster", answer),
        ]
    )
    table = Table(box=rich.box.SIMPLE)
    for name in ("nodes", "GPUs", "utility", "mean speedup", "jobs that run"):
        table.add_column(name, justify="right")
    for one in document["tried"]:
        gpus = one["nodes"] * document["node_gpus"]
        cells = output.percent(one["utility"]), f"{one['speedup']:.2f}", f"{one['running']:,}"
        table.add_row(f"{one['nodes']:,}", f"{gpus:,}", *cells)
    return [about, table]
