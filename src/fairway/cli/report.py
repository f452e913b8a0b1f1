"""`fairway report`: a page or a table from results that were written earlier."""

from __future__ import annotations

from typing import Annotated

import typer

from fairway.cli.compare import write_results
from fairway.cli.files import check_outputs
from fairway.core.errors import InputError


def report(
    results: Annotated[
        list[str], typer.Argument(help="Files written by simulate or compare --json", metavar="RESULT…")
    ],
    html: Annotated[str | None, typer.Option("--html", help="Write a report as a web page", metavar="FILE")] = None,
    csv: Annotated[str | None, typer.Option("--csv", help="Write one row per result", metavar="FILE")] = None,
) -> None:
    """Make a report from results.

    \b
    fairway report fifo.json las.json srtf.json --html report.html
    """
    from fairway.cli import output
    from fairway.report import load_results

    if html is None and csv is None:
        raise InputError("nothing to write: give --html FILE, --csv FILE or both")
    check_outputs({"--html": html, "--csv": csv}, results)
    twice = [path for index, path in enumerate(results) if path in results[:index]]
    if twice:
        raise InputError("this result is given twice", path=twice[0])
    loaded = [result for path in results for result in load_results(path)]
    write_results(loaded, html=html, csv=csv)
    output.show_comparison(loaded)
    output.say_written(html, csv)
