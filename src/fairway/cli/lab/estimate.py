"""`fairway lab estimate`: how well pairs of jobs are estimated from a few measurements, against a full profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairway.core.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from fairway.models.gavel_profile import GavelProfile

MOST_SEEDS = 1000
_ABOUT = {
    "mixed": "mean of the next two",
    "completed": "matrix completion",
    "nearest": "rates of the nearest reference",
    "published": "nearest reference as in Gavel's code",
    "mean": "the mean of the table for every pair",
    "built-in": "built-in estimates, nothing measured",
}


def estimate(
    profile: Annotated[str, typer.Option("--profile", help="Measured pairs: a file in Gavel's format", metavar="FILE")],
    measured: Annotated[
        str, typer.Option("--measured", help="Parts of a new job type's pairs that are measured", metavar="X,Y,…")
    ] = "0.1,0.2,0.4",
    seeds: Annotated[int, typer.Option("--seeds", help="Random choices of what is measured", metavar="N")] = 3,
    hold_out: Annotated[
        Literal["type", "model"],
        typer.Option("--hold-out", help="A new job is of a new type, or of a model that no reference has"),
    ] = "type",
    worth: Annotated[
        float, typer.Option("--worth", help="Pairs that keep this much in all are worth packing", metavar="X")
    ] = 1.1,
    json: Annotated[str | None, typer.Option("--json", help="Write the figures; - is stdout", metavar="FILE")] = None,
) -> None:
    """Measure the errors of the throughput estimator on a profile.

    Each job type is left out in turn; a part of its pairs is measured, the rest estimated and compared with the file.

    \b
    fairway lab estimate --profile simulation_throughputs.json
    fairway lab estimate --profile pairs.json --hold-out model --measured 0.05,0.1
    """
    from fairway.cli import files, output

    parts = _parts(measured)
    if not 1 <= seeds <= MOST_SEEDS:
        raise InputError(f"--seeds must be from 1 to {MOST_SEEDS}, not {seeds}")
    if not 0 < worth < 2:
        raise InputError(f"--worth must be between 0 and 2, not {worth:g}")
    files.check_outputs({"--json": json}, [profile])
    document = _figures(_loaded(profile), parts, seeds, hold_out, worth)
    if json is not None:
        files.write_chunks(json, files.json_chunks(document))
    if json != files.STDOUT:
        output.show(*_shown(document))


def _parts(text: str) -> list[float]:
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--measured {text!r} is not a list of numbers such as 0.1,0.2,0.4") from None
    if not all(0 < part < 1 for part in parts):
        raise InputError(f"--measured {text!r}: each part must be between 0 and 1")
    return parts


def _loaded(path: str) -> GavelProfile:
    from fairway.models.gavel_profile import GavelProfile
    from fairway.models.profile import load_profile

    profile = load_profile(path)
    if not isinstance(profile, GavelProfile):
        raise InputError("this profile has no pairs of jobs; give a file in Gavel's format", path=path)
    return profile


def _figures(
    profile: GavelProfile, parts: list[float], seeds: int, by: Literal["type", "model"], worth: float
) -> dict[str, Any]:
    """What is printed, under the names of the JSON document."""
    import numpy as np

    from fairway.cli.lab.holdout import alone_errors, hold_out, profile_table

    table = profile_table(profile)
    told = ~np.isnan(table.kept)
    scores = [
        {"measured": part, "method": method, **score._asdict()}
        for part in parts
        for method, score in hold_out(table, part, range(seeds), by, worth).items()
    ]
    if not scores:
        raise InputError(f"nothing is left to estimate with --hold-out {by}", path=profile.name)
    return {
        "profile": profile.name,
        "job_types": len(table.kinds),
        "gpu_types": list(table.gpu_types),
        "entries": int(told.sum()),
        "misfits": int((told & (table.kept == 0)).sum()),
        "hold_out": by,
        "seeds": seeds,
        "worth": worth,
        "scores": scores,
        "alone": alone_errors(profile),
    }


def _shown(document: dict[str, Any]) -> list[Table]:
    from fairway.cli import output

    gpus = ", ".join(document["gpu_types"])
    misfits = f"{document['misfits']:,} of {document['entries']:,} do not fit in memory"
    alone = " · ".join(f"{name} ×{factor:.2f}" for name, factor in document["alone"].items())
    about = output.pairs_table(
        [
            ("profile", f"{document['profile']} ({output.count(document['job_types'], 'job type')} on {gpus})"),
            ("pairs", f"{misfits}; worth packing from {document['worth']:g}"),
            ("left out", f"one {document['hold_out']} at a time · {output.count(document['seeds'], 'seed')}"),
            ("speeds alone", f"{alone}  (median factor by which a GPU type never tried is missed)"),
        ]
    )
    return [about, _scores_table(document["scores"])]


def _scores_table(scores: list[dict[str, Any]]) -> Table:
    import rich.box
    from rich.table import Table

    from fairway.cli import output

    table = Table(box=rich.box.SIMPLE)
    for name in ("measured", "estimate", "", "mean error", "median", "p90", "right", "rash", "missed"):
        table.add_column(name, justify="left" if name in ("estimate", "") else "right")
    before = None
    for score in scores:
        part = f"{100 * score['measured']:g} %" if score["measured"] != before else ""
        before = score["measured"]
        errors = [f"{score[name]:.3f}" for name in ("mean", "median", "p90")]
        verdicts = [output.percent(score[name]) for name in ("right", "rash", "missed")]
        table.add_row(part, score["method"], _ABOUT[score["method"]], *errors, *verdicts)
    return table
