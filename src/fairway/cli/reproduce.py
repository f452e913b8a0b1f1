"""`fairway reproduce`: published figures, run again here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.files import STDOUT, check_outputs, json_chunks, write_chunks
from fairway.core.errors import FairwayError, InputError

if TYPE_CHECKING:
    from fairway.reproduce import Case, Setting

NOT_AS_EXPECTED = 1


def reproduce(
    systems: Annotated[
        list[str] | None, typer.Argument(help="Systems, or single cases. Default: all", metavar="[SYSTEM…]")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Directory with the published traces and profiles", metavar="DIR")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short forms of the runs, about two CPU minutes")] = False,
    html: Annotated[str | None, typer.Option("--html", help="Write a web page with pictures", metavar="FILE")] = None,
    json: Annotated[
        str | None, typer.Option("--json", help="Write everything; - is the standard output", metavar="FILE")
    ] = None,
    docs: Annotated[
        str | None, typer.Option("--docs", help="Write the tables of the pages in this directory", metavar="DIR")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="Processes at a time. Default: one per core", metavar="P")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what there is, what it needs and takes; no run")] = False,
) -> None:
    """Run published figures again and compare.

    Without --data, cases that need published files say which repository and files to fetch. The exit status is 1 if a
    figure is not reached for no known reason.

    \b
    fairway reproduce --quick
    fairway reproduce tiresias gandiva --data DIR --html out.html
    """
    from fairway.cli import output
    from fairway.cli.reproduce_tables import cases_table, verdict_lines
    from fairway.reproduce import Setting, chosen_cases
    from fairway.reproduce.run import reproduction_document, unexplained

    check_outputs({"--html": html, "--json": json})
    cases = chosen_cases(systems or [])
    setting = Setting(Path(data) if data is not None else None, quick)
    _check(setting, docs, jobs)
    if listed:
        output.show(cases_table(cases, setting))
        return
    started_s = time.monotonic()
    results = run_cases(cases, setting, jobs)
    document = reproduction_document(results, quick=quick)
    _write(document, html, json, docs)
    if json != STDOUT:
        output.show(*verdict_lines(results, time.monotonic() - started_s))
        output.say_written(html, json, docs)
    wrong = unexplained(results)
    for text in wrong:
        output.say("warning", text)
    if wrong:
        raise typer.Exit(NOT_AS_EXPECTED)


def _check(setting: Setting, docs: str | None, jobs: int | None) -> None:
    if setting.data is not None and not setting.data.is_dir():
        raise InputError(f"--data {setting.data}: there is no such directory")
    if docs is not None and setting.quick:
        raise InputError("--docs and --quick exclude each other: the pages show the full runs")
    if docs is not None and not Path(docs).is_dir():
        raise InputError(f"--docs {docs}: there is no such directory")
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {jobs}")


def _write(document: Mapping[str, Any], html: str | None, json: str | None, docs: str | None) -> None:
    from fairway.reproduce import all_cases
    from fairway.reproduce.page import render_page
    from fairway.reproduce.pages import write_pages

    if html is not None:
        write_chunks(html, [render_page(document)])
    if json is not None:
        write_chunks(json, json_chunks(document))
    if docs is not None:
        write_pages(Path(docs), document["cases"], [case.name for case in all_cases()])


def run_cases(cases: Sequence[Case], setting: Setting, processes: int | None) -> list[dict[str, Any]]:
    """The documents of all cases, in their order. The longest start first, so that no core idles at the end."""
    from fairway.cli.pool import undisturbed, usable_cores, worker_pool
    from fairway.reproduce.run import run_case, state_before

    able = [case.name for case in cases if not state_before(case, setting)]
    workers = min(processes or usable_cores(), len(able))
    done = {case.name: run_case(case, setting) for case in cases if case.name not in able}
    order = sorted((case for case in cases if case.name in able), key=lambda case: -case.cost_s(quick=setting.quick))
    if workers:
        with worker_pool(workers, _ready) as pool:
            with undisturbed():
                futures = {pool.submit(_run_named, case.name, setting): case for case in order}
            done |= _gathered(futures, setting)
    return [done[case.name] for case in cases]


def _ready() -> None:
    """Cases are loaded once, before the first of them is timed."""
    from fairway.reproduce import all_cases

    all_cases()


def _run_named(name: str, setting: Setting) -> dict[str, Any]:
    from fairway.reproduce import all_cases
    from fairway.reproduce.run import run_case

    return run_case(next(case for case in all_cases() if case.name == name), setting)


def _gathered(futures: Mapping[Future[dict[str, Any]], Case], setting: Setting) -> dict[str, dict[str, Any]]:
    from fairway.cli.output import progress

    results: dict[str, dict[str, Any]] = {}
    cost_s = {case.name: case.cost_s(quick=setting.quick) for case in futures.values()}
    pending = set(futures)
    with progress(f"{len(futures)} cases") as report:
        while pending:
            if report:
                report(int(sum(cost_s[name] for name in results)), int(sum(cost_s.values())) + 1)
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                name = futures[future].name
                try:
                    results[name] = future.result()
                except BrokenProcessPool:
                    raise FairwayError(f"{name}: a worker process died, perhaps out of memory; try --jobs 1") from None
    return results
