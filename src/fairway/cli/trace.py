"""`fairway trace`: describe, convert, generate and export traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.files import STDOUT, check_outputs, write_chunks
from fairway.cli.live import At
from fairway.cli.options import takes
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.traces.generate import Rate

trace = typer.Typer(rich_markup_mode=None)

_Format = Annotated[
    str | None, typer.Option("--format", help="The format, if the content is ambiguous", metavar="NAME")
]


@trace.callback(invoke_without_command=True)
def trace_commands(context: typer.Context) -> None:
    """Describe, convert, generate and export traces.

    \b
    fairway trace describe jobs.csv
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@trace.command()
def describe(
    file: Annotated[str, typer.Argument(help="The trace", metavar="FILE")],
    format: _Format = None,  # noqa: A002 - the option's name
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")] = False,
) -> None:
    """Describe a trace: jobs, GPUs, durations and users.

    \b
    fairway trace describe philly.csv
    """
    import json as writer

    from fairway.cli import output
    from fairway.traces import describe as described
    from fairway.traces import read_trace

    figures = described(read_trace(file, format=format))
    if json:
        typer.echo(writer.dumps(figures, indent=1, allow_nan=False))
    else:
        output.show(output.trace_table(figures))


@trace.command()
def convert(
    source: Annotated[str, typer.Argument(help="A trace in any known format", metavar="IN")],
    target: Annotated[str, typer.Argument(help="The file to write; - is the standard output", metavar="OUT")],
    format: _Format = None,  # noqa: A002 - the option's name
) -> None:
    """Write a trace in Fairway's own format, JSON lines.

    \b
    fairway trace convert 60_job.csv 60_job.jsonl
    """
    from fairway.cli import output
    from fairway.traces import read_trace

    check_outputs({"--output": target}, [source])
    workload = read_trace(source, format=format)
    _write(workload, target)
    output.warn_skipped(workload.skipped, len(workload) + sum(workload.skipped.values()))
    for note in workload.notes:
        output.say("note", note)


@trace.command()
def generate(
    name: Annotated[str, typer.Argument(help="gavel-like, shockwave-like, philly-like or pollux-like", metavar="NAME")],
    target: Annotated[
        str, typer.Option("--output", "-o", help="The file to write; - is the standard output", metavar="FILE")
    ],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A parameter of the list above; may be repeated", metavar="KEY=VALUE"),
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="How many jobs", metavar="N")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the workload", metavar="N")] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", help="Give jobs steps, at the throughputs of this profile", metavar="PATH"),
    ] = None,
    gpu_type: Annotated[
        str | None,
        typer.Option("--gpu-type", help="Give jobs steps, at the speed of this GPU. Default: v100", metavar="NAME"),
    ] = None,
) -> None:
    """Generate a workload. The same parameters and seed give the same jobs.

    \b
    gavel-like      mean_interarrival_s durations multi_gpu priorities min_h max_h
    shockwave-like  mean_interarrival_s min_h max_h static accordion gns scale_mix
    philly-like     load gpus users longest_h
    pollux-like     span_h rigid
    \b
    fairway trace generate philly-like --jobs 5000 --set load=0.9 -o busy.jsonl
    fairway trace generate shockwave-like --profile tacc.json -o adaptive.jsonl
    """
    from fairway.traces import generate as generated

    check_outputs({"--output": target}, [] if profile is None else [profile])
    options = _options(jobs, seed, setting or ())
    rate = None if profile is None and gpu_type is None else _rate(profile, gpu_type or "v100")
    _write(generated(name, rate=rate, **options), target)


def _options(jobs: int | None, seed: int | None, settings: Sequence[str]) -> dict[str, Any]:
    """The parameters of a generator as they were given."""
    options: dict[str, Any] = {}
    if jobs is not None:
        options["jobs"] = jobs
    if seed is not None:
        options["seed"] = seed
    for item in settings:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise InputError(f"--set {item}: expected KEY=VALUE")
        if key == "rate":
            raise InputError(f"--set {item}: give --profile or --gpu-type instead")
        if key in options:
            raise InputError(f"--set {item}: {key} is given twice")
        options[key] = value
    return options


def _rate(profile: str | None, gpu_type: str) -> Rate:
    """Steps per second of a model on a GPU type, from a profile or the built-in estimates."""
    from fairway.models.profile import load_profile

    table = load_profile(profile)
    return lambda model, batch_size, gpus: table.rate(model, batch_size, gpu_type, gpus)


@trace.command()
@takes(at=At)
def export(
    at: At,
    target: Annotated[
        str, typer.Option("--output", "-o", help="The file to write; - is the standard output", metavar="FILE")
    ],
    history: Annotated[
        str, typer.Option("--history", help="This scheduler's jobs since a date or for 7d", metavar="T")
    ] = "7d",
) -> None:
    """Write what this scheduler has done as a trace: its jobs, with the time that they really took.

    \b
    fairway trace export --history 7d -o week.jsonl
    """
    from fairway.cli import output
    from fairway.cli.past_days import past_days

    check_outputs({"--output": target}, [])
    workload = past_days(at, history).workload
    if not workload.jobs:
        raise InputError("no job has run in this time")
    _write(workload, target)
    output.warn_skipped(workload.skipped, len(workload) + sum(workload.skipped.values()))
    for note in workload.notes:
        output.say("note", note)


@trace.command()
def formats() -> None:
    """List the trace formats that Fairway reads.

    \b
    fairway trace formats
    """
    from fairway.cli import output
    from fairway.traces import FORMATS

    output.show(output.pairs_table(FORMATS.items()))


def _write(workload: object, target: str) -> None:
    from fairway.cli import output
    from fairway.core.job import Workload
    from fairway.traces.native import native_lines

    assert isinstance(workload, Workload)
    write_chunks(target, (f"{line}\n" for line in native_lines(workload)))
    if target != STDOUT:
        typer.echo(f"wrote {output.count(len(workload), 'job')} to {target}")
