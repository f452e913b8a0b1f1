"""`--switching HOW`: a method, a method with a table of measured times, or one cost for every switch.

`suspend` and `pinned` suspend jobs and take `--host-memory` into account; their table is one of `models.suspend_table`.
"""

from __future__ import annotations

import math

from fairway.core.errors import InputError
from fairway.core.text_files import read_text
from fairway.core.units import MOST_SECONDS, duration_s
from fairway.models.suspend_table import H200, read_suspend_table
from fairway.models.suspension import Suspension
from fairway.models.switching import METHODS, Switching, SwitchTable, with_hits
from fairway.traces.fields import TraceRow, csv_table, shown

COLUMNS = ("model", "restart_ms", "pipelined_ms", "resident_ms")
MOST_MS = 1e9


SUSPENDS = ("suspend", "pinned")
"""Ways of suspending jobs: as measured, and with host memory pinned ahead."""


def switching_of(text: str, host_bytes: float | None = None) -> Switching:
    """What the user wrote: a method, perhaps with `:FILE`, or a duration. `host_bytes` is for suspended jobs."""
    name, colon, path = text.partition(":")
    if name in SUSPENDS:
        if colon and not path:
            raise InputError(f"the switching {text!r} names no file")
        ways = read_suspend_table(path) if path else H200
        room = math.inf if host_bytes is None else float(host_bytes)
        return Suspension(text, ways=ways, host_bytes=room, pinned=name == "pinned")
    if host_bytes is not None:
        raise InputError(f"only suspended jobs are kept in host memory: use --switching {' or '.join(SUSPENDS)}")
    for method in METHODS:
        if name == method:
            if not colon:
                return Switching(text, method)
            if not path:
                raise InputError(f"the switching {text!r} names no file")
            return Switching(text, method, read_switch_table(path))
    try:
        cost_s = duration_s(text)
    except InputError:
        known = f"{', '.join((*METHODS, *SUSPENDS))} (each may have :FILE), or a duration such as 5ms, 5s or 0"
        raise InputError(f"unknown switching {shown(text)}; known: {known}") from None
    if cost_s > MOST_SECONDS:
        raise InputError(f"a switch cannot take longer than {MOST_SECONDS:g} s: {shown(text)}")
    return Switching.fixed(cost_s, text)


def file_of(text: str) -> str | None:
    """The file in what the user wrote, if there is one."""
    name, _, path = text.partition(":")
    return path if name in (*METHODS, *SUSPENDS) and path else None


def read_switch_table(path: str) -> SwitchTable:
    """Measured times: a CSV file with `COLUMNS`, and perhaps `resident_hit_ms` and `bytes` (of the weights)."""
    rows: dict[str, tuple[float, float, float, float | None]] = {}
    sizes: dict[str, float] = {}
    for row in csv_table(read_text(path), path, COLUMNS):
        model = row.required("model")
        if model in rows:
            raise row.error(f"model {shown(model)} comes twice")
        restart, pipelined, resident = (_positive(row, column) for column in COLUMNS[1:])
        hit = None if row.blank("resident_hit_ms") else row.number("resident_hit_ms")
        if hit is not None and hit > resident:
            raise row.error(f"resident_hit_ms {hit:g} is more than resident_ms {resident:g}")
        rows[model] = (restart, pipelined, resident, hit)
        size = row.optional_whole("bytes")
        if size is not None:
            sizes[model] = float(size)
    if not rows:
        raise InputError("the table has no rows", path=path)
    return SwitchTable(path, with_hits(rows), sizes)


def _positive(row: TraceRow, column: str) -> float:
    value = row.number(column)
    if not 0 < value <= MOST_MS:
        raise row.error(f"{column} {shown(row.text(column))} is not a number above 0 and up to {MOST_MS:g}")
    return value
