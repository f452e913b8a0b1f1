"""What a person sees: tables in human units on stdout, progress and remarks on stderr.

A table is rendered to text first and written in one go, so that a full disk or a closed pipe is an ordinary error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import rich.box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fairway.cli.visible import visible, visible_lines

if TYPE_CHECKING:
    from fairway.cli.simulation_options import Scene

_PIPED_WIDTH = 200
_HEEDED = {"range": "ranges of GPUs", "weight": "weights", "deadline": "deadlines"}
"""What policies take notice of that jobs ask for, in words."""
_DETAILS = ("queue_p99_s", "lost_gpu_h", "jct_p50_s", "knows", "ftf_concurrent_worst", "makespan_s", "preemptions")
"""Columns that are dropped on a narrow terminal, the least important first."""
_COLUMNS = {
    "knows": "may know",
    "jct_mean_s": "JCT mean",
    "jct_p50_s": "JCT p50",
    "jct_p99_s": "JCT p99",
    "queue_mean_s": "queue mean",
    "queue_p99_s": "queue p99",
    "makespan_s": "makespan",
    "utilisation": "utilised",
    "preemptions": "preempted",
    "lost_gpu_h": "lost GPU-h",
    "ftf_concurrent_worst": "worst ρ",
    "ftf_concurrent_unfair_fraction": "unfair",
    "promise_error": "ETA error\nmedian",
    "promise_error_mean": "ETA error\nmean",
    "promise_within": "ETA\nwithin",
}
_TOLD = ("promise_error", "promise_error_mean", "promise_within")
"""Columns that are there only where jobs were told when they end."""


def duration(seconds: float | None) -> str:
    """A length of time in the two units that matter: `12.3 s`, `4 min 10 s`, `3 h 5 min`, `2 d 4 h`."""
    if seconds is None:
        return "–"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, part, part_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size:,} {unit}" + (f" {rest} {part_unit}" if rest else "")
    return f"{whole} s"


def count(number: float, noun: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def show(*what: RenderableType) -> None:
    """Print to stdout: coloured and as wide as the terminal, or plain and unwrapped when piped."""
    sys.stdout.write(rendered(*what))


def rendered(*what: RenderableType) -> str:
    console = _console()
    with console.capture() as captured:
        for each in what:
            console.print(Visible(each), crop=console.is_terminal)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().split("\n")[:-1])


class Visible:
    """Something to print in which unprintable characters of its texts are escaped."""

    def __init__(self, what: RenderableType) -> None:
        self._what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._what, options):
            text = segment.text
            plain = segment.control or text == "\n" or text.isprintable()
            yield segment if plain else Segment(visible_lines(text), segment.style)


def _console() -> Console:
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(file=sys.stdout, highlight=False, markup=False, width=width)


def pairs_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Two columns, names on the left."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def summary_table(figures: Mapping[str, Any]) -> Table:
    """The figures of one run."""
    rows = [
        ("policy", figures["policy"]),
        ("trace", figures["trace"]),
        ("cluster", f"{figures['cluster']} ({count(figures['gpus'], 'GPU')})"),
        ("world", _world_of(figures)),
        ("jobs", _jobs_of(figures)),
        ("completion time", _spread_of(figures["jct_s"])),
        *_weighted_of(figures),
        ("queueing", _spread_of(figures["queue_s"])),
        ("first feedback", f"100 mini-batches after {_spread_of(figures['feedback_s'])}"),
        ("makespan", duration(figures["makespan_s"])),
        ("utilisation", f"{percent(figures['utilisation'])} held · {percent(figures['throughput'])} useful"),
        ("preemptions", _stops_of(figures)),
        *_switches_of(figures),
        ("cost", number(figures["cost"])),
        ("deadlines missed", f"{figures['deadline_misses']:,}"),
    ]
    for kind, rho in figures["ftf"].items():
        shown = f"mean {number(rho['mean'])} · worst {number(rho['worst'])} · {percent(rho['unfair_fraction'])} unfair"
        rows.append((f"ρ {kind}", shown))
    rows.append(("Jain index", number(figures["jain"])))
    spent = f"{figures['cpu_s']:.2f} CPU s ({figures['decide_cpu_s']:.2f} deciding)"
    rows.append(("this run", f"{count(figures['rounds'], 'round')} · {spent} · {_mb(figures['peak_rss_bytes'])}"))
    return pairs_table(rows)


def _world_of(figures: Mapping[str, Any]) -> str:
    rounds = f"rounds of {duration(figures['round_s'])}" if figures["round_s"] else "decides at every event"
    switching = figures.get("switching")
    restart = f"switching {switching}" if switching else f"restart {duration(figures['restart_cost_s'])}"
    world = f"{figures['rules']} rules · {figures['placement']} · {rounds} · {restart} · seed {figures['seed']}"
    return f"{world} · tenants of {figures['tenants']}" if "tenants" in figures else world


def _jobs_of(figures: Mapping[str, Any]) -> str:
    left_out = f" · {figures['skipped']:,} skipped ({_reasons(figures['skipped_by_reason'])})"
    return f"{figures['finished']:,} of {figures['jobs']:,} finished" + (left_out if figures["skipped"] else "")


def _stops_of(figures: Mapping[str, Any]) -> str:
    lost = f"{number(figures['lost_gpu_h'])} GPU-hours lost"
    return f"{figures['preemptions']:,} · {count(figures['restarts'], 'restart')} · {lost}"


_WAYS = {
    "in_place": "in place",
    "both": "moved and by the driver",
    "driver": "by the driver",
    "restart": "by a restart",
}


def _switches_of(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "switches" not in figures:
        return []
    lost_gpu_s = 3600 * figures["switching_gpu_h"]
    rows = [("switches", f"{figures['switches']:,} · {duration(lost_gpu_s)} of GPU time lost")]
    ways = figures.get("switching_ways", {})
    used = [f"{use['times']:,} {_WAYS.get(way, way)}" for way, use in ways.items() if use["times"]]
    return [*rows, ("came back", " · ".join(used))] if used else rows


def _reasons(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{times:,} {reason}" for reason, times in skipped.items())


def _spread_of(spread: Mapping[str, float | None]) -> str:
    return " · ".join(f"{name.replace('p50', 'median')} {duration(value)}" for name, value in spread.items())


def _weighted_of(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The completion time by weight beside what no schedule is below, where that is known."""
    if "jct_weighted_least_s" not in figures or figures["jct_weighted_s"] is None:
        return []
    mean, least = duration(figures["jct_weighted_s"]), duration(figures["jct_weighted_least_s"])
    return [("by weight", f"mean {mean}; no schedule is below {least}")]


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"


def show_comparison(results: Sequence[Mapping[str, Any]]) -> None:
    """One row per policy, the shortest mean completion time first, the best value of each column highlighted."""
    from fairway.report import comparison_rows

    rows = sorted(comparison_rows(results), key=_by_mean_jct)
    fair_fight = len({(str(each["trace"]), str(each["cluster"])) for each in results}) == 1
    console = _console()
    endless = console.options.update(max_width=10_000)
    silent = () if any(row["promise_within"] is not None for row in rows) else _TOLD
    for dropped in range(len(_DETAILS) + 1):
        keys = [key for key in _COLUMNS if key not in (*_DETAILS[:dropped], *silent)]
        table = _comparison(rows, keys, mark_best=fair_fight)
        if console.measure(table, options=endless).maximum <= console.width:
            break
    table.caption = "ρ: finish-time fairness, concurrent definition; above 1.05 is unfair"
    if not silent:
        table.caption += "\nETA: the ends that jobs were told at their submission, over that completion time"
    least = [each["jct_weighted_least_s"] for each in results if "jct_weighted_least_s" in each]
    if least and fair_fight:
        table.caption += f"\nno schedule has a mean completion time by weight below {duration(max(least))}"
    table.caption_justify = "left"
    show(table)


def _by_mean_jct(row: Mapping[str, Any]) -> tuple[bool, float]:
    mean = row["jct_mean_s"]
    return mean is None, mean or 0.0


def _comparison(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], *, mark_best: bool) -> Table:
    from fairway.report.columns import COLUMNS, best_rows, scale_of

    known = {column.key: column for column in COLUMNS}
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True, style="bold")
    runs = [f" ({row['runs']} runs)" if row["runs"] > 1 else "" for row in rows]
    cells = [[Text(f"{row['policy']}{more}") for row, more in zip(rows, runs, strict=True)]]
    for key in keys:
        if key == "knows":
            table.add_column(_COLUMNS[key])
            cells.append([Text(row[key]) for row in rows])
            continue
        values = [row[key] for row in rows]
        scale = scale_of(known[key], [value for value in values if value is not None])
        best = best_rows(known[key], values) if mark_best else set()
        table.add_column(f"{_COLUMNS[key]}\n{scale.unit}".rstrip(), justify="right", no_wrap=True)
        texts = [scale.write(value) + _range_of(row, key, scale.write) for row, value in zip(rows, values, strict=True)]
        cells.append([Text(text, style="bold green" if i in best else "") for i, text in enumerate(texts)])
    for index in range(len(rows)):
        table.add_row(*(column[index] for column in cells))
    return table


def _range_of(row: Mapping[str, Any], key: str, write: Callable[[float], str]) -> str:
    low, high = row[f"{key}_min"], row[f"{key}_max"]
    return f" ±{write((high - low) / 2)}" if low is not None and high > low else ""


def policies_table(listed: Sequence[Mapping[str, Any]]) -> Table:
    """All policies: what they do, what they may know, their knobs."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("policy", "what it does", "may know", "knobs"):
        table.add_column(heading, no_wrap=heading == "policy", style="bold" if heading == "policy" else "")
    for each in listed:
        knobs = "\n".join(f"{name}={default}" for name, default in each["knobs"].items())
        table.add_row(*(Text(text) for text in (each["name"], each["about"], each["knows"], knobs)))
    return table


def policy_table(told: Mapping[str, Any]) -> Table:
    """One policy in full."""
    rows = [("policy", told["name"]), ("what it does", told["about"]), ("source", told["source"])]
    rows += [("", text) for text in told["idea"]]
    rows.append(("may know", told["knows"]))
    rows.append(("heeds", ", ".join(_HEEDED[word] for word in told["heeds"])))
    for knob, default in told["knobs"].items():
        choices = told["choices"].get(knob)
        rows.append(("knob", f"{knob}={default}" + (f"  (one of {', '.join(choices)})" if choices else "")))
    rows += [("" if told["knobs"] else "details", text) for text in told["details"]]
    return pairs_table((name, text) for name, text in rows if text)


def trace_table(figures: Mapping[str, Any]) -> Table:
    """What `fairway trace describe` says."""
    times, share = figures["duration_s"], figures["share"]
    offered = figures["average_offered_gpus"]
    skipped = f" · skipped {_reasons(figures['skipped'])}" if figures["skipped"] else ""
    rows = [
        ("trace", f"{figures['source']} ({figures['format']})"),
        ("jobs", f"{figures['jobs']:,}{skipped}"),
        ("submitted over", duration(figures["span_s"])),
        ("arrivals", f"{number(figures['arrivals_per_hour'])} per hour"),
        ("GPUs asked for", _top({f"{size}": times for size, times in figures["gpus"].items()}, " × ", 12)),
        ("GPU-hours", number(figures["gpu_hours"])),
        ("GPUs offered work", "–" if offered is None else f"{offered:,.1f} on average"),
        ("duration", "–" if times is None else _spread_of(times)),
        ("work in steps", count(figures["jobs_with_steps"], "job")),
    ]
    rows += [(name, _top(figures[name], " ", 5)) for name in ("users", "queues", "models") if figures[name]]
    rows += [(name.replace("_", " "), percent(value)) for name, value in share.items() if value]
    rows += [("note", note) for note in figures["notes"]]
    return pairs_table(rows)


def _top(counts: Mapping[str, int], mark: str, most: int) -> str:
    shown = [f"{name}{mark}{times:,}" for name, times in list(counts.items())[:most]]
    more = len(counts) - len(shown)
    return " · ".join(shown) + (f" · {more:,} more" if more else "")


def say(kind: str, text: str) -> None:
    """A remark on stderr."""
    print(f"fairway: {kind}: {visible(text)}", file=sys.stderr)


def say_written(*paths: str | None) -> None:
    """Name the files that were written, on stdout under the table."""
    written = [path for path in paths if path is not None and not path.startswith("/dev/")]
    if written:
        sys.stdout.write(f"wrote {', '.join(written)}\n")


def warn_skipped(skipped: Mapping[str, int], jobs: int) -> None:
    if skipped:
        say("warning", f"{sum(skipped.values()):,} of {count(jobs, 'job')} skipped: {_reasons(skipped)}")


def say_notes(scene: Scene, results: Sequence[Mapping[str, Any]]) -> None:
    """What a reader must know before believing the figures: jobs left out or unfinished, estimates, missing rules."""
    from fairway.simulator.rules import rules_named

    first = results[0]
    warn_skipped(first["skipped_by_reason"], first["jobs"])
    for each in results:
        unfinished = each["jobs"] - each["skipped"] - each["finished"]
        if unfinished:
            who = f" under {each['policy']} (seed {each['seed']})" if len(results) > 1 else ""
            why = "the run ended while they waited for GPUs"
            say("warning", f"{unfinished:,} of {count(each['jobs'], 'job')} did not finish{who}: {why}")
    for note in scene.workload.notes:
        say("note", note)
    if scene.world.profile is None and first["profile"] != "durations":
        say("note", f"throughputs are estimates from the {first['profile']} profile; --profile takes measured ones")
    for name in scene.idle_tenants():
        queues = ", ".join(sorted({job.queue for job in scene.workload.jobs})[:8]) or "none"
        say("warning", f"tenant {name!r} has no jobs in this trace; queues there: {queues}")
    missing = rules_named(scene.world.rules).unmodelled
    if missing:
        say("note", f"the {scene.world.rules} rules do not model yet: {', '.join(missing)}")


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar with the time left, on a terminal; None when stderr is piped."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
