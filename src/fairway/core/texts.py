"""Sentences about rows, made only on request: thousands of jobs may wait, and users ask about few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fairway.core.arrays import Ints


class Texts(Mapping[int, str]):
    """A sentence for each of some rows. `say` makes the sentence of a row; `rows` are in rising order.

    A decision may be read long after it was made. So `say` must not read the columns of a snapshot, which change
    with the next event: it takes copies of what it needs.
    """

    __slots__ = ("_say", "rows")

    def __init__(self, rows: Ints, say: Callable[[int], str]) -> None:
        self.rows = rows
        self._say = say

    def __contains__(self, row: object) -> bool:
        at = int(self.rows.searchsorted(row))  # type: ignore[call-overload]
        return at < len(self.rows) and bool(self.rows[at] == row)

    def __getitem__(self, row: int) -> str:
        if row not in self:
            raise KeyError(row)
        return self._say(row)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def __len__(self) -> int:
        return len(self.rows)


def over(first: Mapping[int, str], second: Mapping[int, str]) -> Mapping[int, str]:
    """Both texts. Where both have one for a row, the first is used."""
    if not first or not second:
        return first or second

    def say(row: int) -> str:
        return first[row] if row in first else second[row]

    return Texts(np.union1d(_rows(first), _rows(second)), say)


def joined(parts: Sequence[tuple[Ints, Mapping[int, str]]]) -> Mapping[int, str]:
    """Texts about parts of the rows as texts about all rows. Row n of a part is row `rows[n]` of the whole."""
    told = [(rows, texts) for rows, texts in parts if texts]
    if not told:
        return {}
    places = [_rows(texts) for _, texts in told]
    numbers = np.concatenate([rows[at] for (rows, _), at in zip(told, places, strict=True)])
    part_of = np.repeat(np.arange(len(told)), [len(at) for at in places])
    order = numbers.argsort(kind="stable")
    numbers, part_of, place = numbers[order], part_of[order], np.concatenate(places)[order]

    def say(row: int) -> str:
        at = int(numbers.searchsorted(row))
        texts = told[int(part_of[at])][1]
        return texts[int(place[at])]

    return Texts(numbers, say)


def _rows(texts: Mapping[int, str]) -> Ints:
    return texts.rows if isinstance(texts, Texts) else np.array(sorted(texts), dtype=np.int64)
