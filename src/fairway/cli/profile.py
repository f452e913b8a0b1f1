"""`fairway profile`: what was measured of live jobs, as a table and as a profile for simulations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.live import Where
from fairway.cli.options import takes
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = Mapping[str, Any]

profile = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
_NOTHING = "nothing was measured yet: jobs have to report their steps"


@profile.callback()
def profiles() -> None:
    """Show or save what was measured of live jobs: their speeds, and what pairs of them keep on the same GPUs.

    \b
    fairway profile show
    fairway profile export measured.json
    fairway simulate j.csv --cluster h200:4 --policy las --profile measured.json
    """


@profile.command("show")
@takes(where=Where)
def profile_show(where: Where) -> None:
    """Show how fast jobs are alone, and what pairs of them keep of their speeds on the same GPUs.

    \b
    fairway profile show
    """
    told = where.client().profile()
    where.show(told, lambda: _tables(told) if told["speeds"] else f"{_NOTHING}\n")


@profile.command("export")
@takes(where=Where)
def profile_export(
    where: Where,
    file: Annotated[str, typer.Argument(help="The file to write; - is the standard output", metavar="FILE")],
    sharing: Annotated[
        str | None,
        typer.Option(
            "--sharing", help="Pairs that shared in this way. Default: the way with most pairs", metavar="WAY"
        ),
    ] = None,
) -> None:
    """Save what was measured as a profile, which `fairway simulate --profile` reads.

    \b
    fairway profile export measured.json
    """
    from fairway.cli.files import STDOUT, check_outputs, write_chunks

    check_outputs({} if file == STDOUT else {"FILE": file})
    told = where.client().profile(sharing=sharing)
    if not told["throughputs"]:
        raise InputError(_NOTHING)
    write_chunks(file, [json.dumps(told["throughputs"], indent=1), "\n"])
    if file != STDOUT:
        counts = {"speeds": len(told["speeds"]), "pairs": _pairs_in(told["throughputs"])}
        where.show({"file": file, **counts}, lambda: f"saved in {file}: {_counted(counts)}\n")


def _pairs_in(throughputs: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> int:
    return sum(
        isinstance(value, list) for rows in throughputs.values() for row in rows.values() for value in row.values()
    )


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name if number != 1 else name[:-1]}" for name, number in counts.items())


def _tables(told: Row) -> RenderableType:
    from rich.console import Group

    parts: list[Any] = [_speeds_table(told["speeds"])]
    return Group(*parts, "", _pairs_table(told["pairs"])) if told["pairs"] else parts[0]


def _kind(row: Row) -> str:
    from fairway.cli.visible import line

    batch = f" · batch {row['batch_size']}" if row["batch_size"] else ""
    gpus = f" · {row['gpus']} GPUs" if row["gpus"] > 1 else ""
    return line(f"{row['model']}{batch}{gpus}")


def _measured(rows: Sequence[Row]) -> list[Any]:
    """The columns that say how often and when something was measured."""
    import time

    from fairway.cli.fitted_table import TableColumn
    from fairway.cli.live_tables import ago

    times = TableColumn("measured", [f"{row['times']:,}×" for row in rows], right=True)
    return [times, TableColumn("last", [ago(row["measured_s"], time.time()) for row in rows])]


def _speeds_table(rows: Sequence[Row]) -> RenderableType:
    from fairway.cli.fitted_table import Listed, TableColumn
    from fairway.cli.visible import line

    return Listed(
        [
            TableColumn("GPU", [line(row["gpu_type"]) for row in rows]),
            TableColumn("job", [_kind(row) for row in rows], least=8),
            TableColumn("steps/s alone", [f"{row['steps_per_s']:.4g}" for row in rows], right=True),
            *_measured(rows),
        ]
    )


def _pairs_table(rows: Sequence[Row]) -> RenderableType:
    from fairway.cli.fitted_table import Listed, TableColumn
    from fairway.cli.output import percent
    from fairway.cli.visible import line

    return Listed(
        [
            TableColumn("GPU", [line(row["gpu_type"]) for row in rows]),
            TableColumn("shared by", [line(row["sharing"]) for row in rows]),
            TableColumn("job", [_kind(row["first"]) for row in rows], least=8),
            TableColumn("keeps", [percent(row["kept"][0]) for row in rows], right=True),
            TableColumn("beside", [_kind(row["second"]) for row in rows], least=8),
            TableColumn("which keeps", [percent(row["kept"][1]) for row in rows], right=True),
            TableColumn("together", [f"{sum(row['kept']):.2f}" for row in rows], right=True),
            *_measured(rows),
        ]
    )
