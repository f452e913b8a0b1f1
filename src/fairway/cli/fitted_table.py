"""Lists that fit the terminal: which columns are shown, and how wide, depends on its width.

Columns that are empty in all rows are left out. On a narrow terminal the less important ones go, then names are
shortened, and the last column gets what is left. A pipe gets everything, uncut, one row per line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

NOTHING = "–"
_GAP = "  "
_ENDLESS = 1_000_000
_LAST_WANTED, _LAST_ENOUGH, _LAST_LEAST = 32, 20, 8
"""Widths of the last column: below the first, details are dropped; below the second, important columns are cut or
dropped; the third it always has."""
COUNTS = 4
"""Columns of lower ranks are important: they are worth more than the ends of long names. The others are details."""


@dataclass(frozen=True)
class TableColumn:
    """One column. The highest `rank` is dropped first, rank 0 never. `least` is the width to which it may be cut."""

    heading: str
    cells: Sequence[str]
    rank: int = 0
    least: int = 0
    right: bool = False
    styles: Sequence[str] = field(default=())

    @property
    def width(self) -> int:
        return max(cell_len(self.heading), max(map(cell_len, self.cells), default=0))

    @property
    def empty(self) -> bool:
        return all(cell in ("", NOTHING) for cell in self.cells)


class Listed:
    """Columns side by side. The last one is a text of any length, and is cut first."""

    def __init__(self, columns: Sequence[TableColumn], *, keep: Sequence[str] = ()) -> None:
        some = [one for one in columns if not one.empty or one.heading in keep]
        self._columns = some or list(columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width if console.is_terminal else _ENDLESS
        columns, widths = fitted(self._columns, width)
        bold, plain = console.get_style("bold"), Style.null()
        heads = [_cell(one.heading, size, right=one.right) for one, size in zip(columns, widths, strict=True)]
        yield Segment(_GAP.join(heads), bold)
        yield Segment.line()
        yield Segment("─" * min(sum(widths) + len(_GAP) * (len(widths) - 1), width), console.get_style("dim"))
        yield Segment.line()
        styles = {name: console.get_style(name) for one in columns for name in one.styles if name}
        for row in range(len(columns[0].cells)):
            for number, (one, size) in enumerate(zip(columns, widths, strict=True)):
                style = styles.get(one.styles[row], plain) if one.styles else plain
                yield Segment((_GAP if number else "") + _cell(one.cells[row], size, right=one.right), style)
            yield Segment.line()


def fitted(columns: Sequence[TableColumn], width: int) -> tuple[list[TableColumn], list[int]]:
    """The columns that fit a terminal of this width, and the width of each."""
    shown = list(columns)
    wanted, enough = (min(columns[-1].width, size) for size in (_LAST_WANTED, _LAST_ENOUGH))
    for going in _by_rank(columns):
        if _needed(shown, cut=False) + wanted <= width:
            break
        if going.rank < COUNTS and _needed(shown, cut=True) + enough <= width:
            break
        shown.remove(going)
    widths = [one.width for one in shown]
    _cut(shown, widths, width, wanted)
    widths[-1] = max(min(widths[-1], width - _needed(shown, cut=False, widths=widths)), _LAST_LEAST)
    return shown, widths


def _by_rank(columns: Sequence[TableColumn]) -> Iterator[TableColumn]:
    yield from sorted((one for one in columns[:-1] if one.rank), key=lambda one: -one.rank)


def _needed(columns: Sequence[TableColumn], *, cut: bool, widths: Sequence[int] | None = None) -> int:
    """The width of all columns but the last, with all gaps."""
    sizes = widths or [min(one.width, one.least or one.width) if cut else one.width for one in columns]
    return sum(sizes[:-1]) + len(_GAP) * (len(columns) - 1)


def _cut(columns: Sequence[TableColumn], widths: list[int], width: int, wanted: int) -> None:
    """Shorten columns, the widest first, until the last one has the width it wants."""
    over = _needed(columns, cut=False, widths=widths) + wanted - width
    while over > 0:
        able = [at for at, one in enumerate(columns[:-1]) if one.least and widths[at] > one.least]
        if not able:
            return
        widest = max(able, key=lambda at: widths[at] - columns[at].least)
        widths[widest] -= 1
        over -= 1


def _cell(text: str, size: int, *, right: bool) -> str:
    length = cell_len(text)
    if length > size:
        return set_cell_size(text, max(size - 1, 0)).rstrip() + "…"
    return " " * (size - length) + text if right else text + " " * (size - length)
