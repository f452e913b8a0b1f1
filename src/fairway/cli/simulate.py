"""`fairway simulate`: one trace, one policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairway.cli.files import STDOUT, check_outputs, json_chunks, write_chunks
from fairway.cli.simulation_options import World, takes_world

if TYPE_CHECKING:
    from fairway.simulator.result import Result


@takes_world
def simulate(
    trace: Annotated[str, typer.Argument(help="The trace: Fairway's JSON lines or a public format", metavar="TRACE")],
    policy: Annotated[
        str, typer.Option("--policy", help="See `fairway policies`; knobs after a colon", metavar="NAME[:key=value,…]")
    ],
    world: World,
    json: Annotated[
        str | None, typer.Option("--json", help="Write the whole result; - is the standard output", metavar="FILE")
    ] = None,
    timeline: Annotated[
        str | None, typer.Option("--timeline", help="Write a timeline for ui.perfetto.dev", metavar="FILE")
    ] = None,
) -> None:
    """Replay a trace on a described cluster under one policy.

    \b
    fairway simulate 60_job.csv --cluster v100:4x4 --policy srtf
    fairway simulate j.jsonl --cluster a100:8x8 --policy las:levels=3600/36000
    fairway simulate j.jsonl --cluster a100:8x8 --policy fifo --mtbf-hours 200
    fairway simulate j.jsonl --cluster v100:4x4 --policy las --switching 5ms
    """
    from fairway.cli import output
    from fairway.policies import make_policy
    from fairway.policies.registry import files_of_knobs

    check_outputs({"--json": json, "--timeline": timeline}, [trace, *world.inputs, *files_of_knobs(policy)])
    world.check_names()
    make_policy(policy)
    scene = world.load(trace)
    with output.progress(f"{policy} on {trace}") as report:
        result = scene.run(policy, world.seed, report)
    if timeline is not None:
        write_timeline_of(result, timeline)
    if json is not None:
        write_chunks(json, json_chunks(result.to_dict()))
    figures = result.figures()
    if json != STDOUT:
        output.show(output.summary_table(figures))
        output.say_written(json, timeline)
    output.say_notes(scene, [figures])


def write_timeline_of(result: Result, path: str) -> None:
    """The run as a file for Perfetto."""
    from fairway.report import write_timeline

    write_timeline(
        path,
        policy=result.settings.policy,
        gpu_names=result.cluster.node_names_of_gpus,
        node_names=[node.name for node in result.cluster.nodes],
        node_of_gpu=result.cluster.node_of_gpu,
        job_names=[job.id for job in result.specs],
        segments=result.ledger.segments,
        series=result.series(),
        batches=result.ledger.batches,
    )
