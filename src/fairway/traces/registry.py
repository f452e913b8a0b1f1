"""Which formats there are, how to tell them apart by their content, and how to read a trace of any of them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fairway.core.errors import InputError
from fairway.core.job import Workload
from fairway.core.text_files import read_text
from fairway.traces.alibaba import ALIBABA_COLUMNS, read_alibaba
from fairway.traces.fields import Parsed, shown, split_csv, split_plain
from fairway.traces.gavel import GAVEL_COLUMNS, SHOCKWAVE_COLUMNS, read_gavel, read_shockwave
from fairway.traces.helios import HELIOS_COLUMNS, read_helios
from fairway.traces.native import read_native
from fairway.traces.philly import PHILLY_COLUMNS, read_philly, read_philly_json
from fairway.traces.pollux import POLLUX_COLUMNS, read_pollux
from fairway.traces.sacct import SACCT_COLUMNS, read_sacct
from fairway.traces.tiresias import (
    ELASTICFLOW_COLUMNS,
    MURI_COLUMNS,
    TIRESIAS_COLUMNS,
    read_elasticflow,
    read_muri,
    read_tiresias,
)


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format: its description, its reader, and for a CSV with a header the columns that identify it."""

    about: str
    read: Callable[[str, str], Parsed]
    header: tuple[str, ...] = ()


READERS: dict[str, TraceFormat] = {
    "fairway": TraceFormat("Fairway's own JSON lines, one job per line", read_native),
    "gavel": TraceFormat("Gavel, 10 tab-separated columns, work in steps", read_gavel),
    "shockwave": TraceFormat("Shockwave, 12 tab-separated columns, adaptive batch sizes", read_shockwave),
    "tiresias": TraceFormat("Tiresias simulator CSV, seconds", read_tiresias, TIRESIAS_COLUMNS),
    "muri": TraceFormat("Muri simulator CSV, milliseconds", read_muri, MURI_COLUMNS),
    "elasticflow": TraceFormat("ElasticFlow CSV, with deadlines", read_elasticflow, ELASTICFLOW_COLUMNS),
    "pollux": TraceFormat("Pollux and Sia workload CSV, applications without durations", read_pollux, POLLUX_COLUMNS),
    "philly": TraceFormat("Microsoft Philly as a flat CSV", read_philly, PHILLY_COLUMNS),
    "philly-json": TraceFormat("Microsoft Philly, the original job log in JSON", read_philly_json),
    "alibaba": TraceFormat("Alibaba 2023 (openb) pod list CSV, with shared GPUs", read_alibaba, ALIBABA_COLUMNS),
    "helios": TraceFormat("SenseTime Helios and Lucid CSV", read_helios, HELIOS_COLUMNS),
    "sacct": TraceFormat("Slurm accounting, sacct --parsable2 with a header", read_sacct),
}

FORMATS: dict[str, str] = {name: known.about for name, known in READERS.items()}
"""The name and a one-line description of every trace format that can be read."""


def read_trace(path: str | Path, format: str | None = None) -> Workload:  # noqa: A002 - the option's name
    """The jobs of a trace file in the order of submission; the format is found from the content unless it is given."""
    name = str(path)
    if format is not None and format not in READERS:
        raise InputError(f"unknown trace format {shown(format)}; known: {', '.join(READERS)}")
    text = read_text(path)
    chosen = format or detect(text, name)
    with _without_collector():
        parsed = READERS[chosen].read(text, name)
    if not parsed.jobs:
        skipped = ", ".join(f"{count} {reason}" for reason, count in parsed.skipped.items())
        raise InputError(f"no jobs{f' (skipped: {skipped})' if skipped else ''}", path=name)
    return Workload.of(
        parsed.jobs, source=name, format=chosen, skipped=parsed.skipped, notes=parsed.notes, lines=parsed.lines
    )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the cycle collector: a reader makes no cycles, and a large trace would start it hundreds of times."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def detect(text: str, path: str) -> str:
    """The name of the format that the content is in."""
    line, first = next((n, s) for n, s in enumerate(text.split("\n"), start=1) if s.strip())
    opening = first.lstrip()[0]
    if opening in "{[":
        return "fairway" if opening == "{" else "philly-json"
    if "\t" in first:
        return _detect_tabs(text, path, line)
    if "|" in first and set(SACCT_COLUMNS) <= {name.strip() for name in first.split("|")}:
        return "sacct"
    _, header = next(split_csv(text, path))
    return _detect_header([name.strip() for name in header], path, line)


def _detect_tabs(text: str, path: str, line: int) -> str:
    """Gavel or Shockwave, by the most common width, so that a truncated line is reported as such."""
    widths = Counter(len(cells) for _, cells in islice(split_plain(text, "\t"), 100))
    width = widths.most_common(1)[0][0]
    known = {len(GAVEL_COLUMNS): "gavel", len(SHOCKWAVE_COLUMNS): "shockwave"}
    if width not in known:
        message = f"{width} tab-separated columns are neither gavel (10) nor shockwave (12)"
        raise InputError(f"{message}; known formats: {', '.join(READERS)}", path=path, line=line)
    return known[width]


def _detect_header(columns: list[str], path: str, line: int) -> str:
    """The format whose columns are all there; of two such formats, the one that needs more columns."""
    fits = {name: set(known.header) for name, known in READERS.items() if known.header}
    fits = {name: header for name, header in fits.items() if header <= set(columns)}
    best = [name for name, header in fits.items() if not any(header < other for other in fits.values())]
    if len(best) == 1:
        return best[0]
    seen = ", ".join(shown(name)[1:-1] for name in columns[:20]) + (", ..." if len(columns) > 20 else "")
    if best:
        message = f"the columns fit more than one format ({', '.join(best)}), so name it; columns seen: {seen}"
    else:
        message = f"the columns fit no known trace format; columns seen: {seen}; known formats: {', '.join(READERS)}"
    raise InputError(message, path=path, line=line)
