"""The rows of a damaged SQLite file, read page by page, without the tree that leads to them.

If an inner page or the head of the file is lost, SQLite finds none of the rows below it. But every leaf of a table says
where its own rows are. Pages that the file lists as free are left out, so deleted rows do not come back.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = b"SQLite format 3\0"
PAGE_BYTES = 4096
"""The size of a page if the head of the file is lost."""
_LEAF = 0x0D
_MOST_COLUMNS = 64
_WHOLE = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""The number of bytes of a whole number, by its type."""

Value = int | str | None


class PageRow(NamedTuple):
    """A row with its key. Fractional numbers and blobs are None."""

    key: int
    values: tuple[Value, ...]


class DamagedError(ValueError):
    """Something is not where it should be."""


class Shape(NamedTuple):
    """How a file is divided into pages. The last `spare_bytes` of each page are not used."""

    page_bytes: int
    spare_bytes: int = 0


def shape_of(head: bytes) -> Shape:
    """What the head of a file says about its pages, or the usual values."""
    size = int.from_bytes(head[16:18], "big")
    size = 65536 if size == 1 else size
    if not head.startswith(MAGIC) or size not in (1 << power for power in range(9, 17)) or len(head) < 100:
        return Shape(PAGE_BYTES)
    return Shape(size, head[20] if head[20] <= size - 480 else 0)


def rows(path: Path, skip: Container[int]) -> Iterator[PageRow]:
    """Every row of every leaf that can be read, except for rows with keys in `skip`."""
    content = path.read_bytes()
    shape = shape_of(content)
    free = _free_pages(content, shape)
    for number in range(1, -(-len(content) // shape.page_bytes) + 1):
        if number not in free:
            yield from _rows_of(content, number, shape, skip)


def _page(content: bytes, number: int, shape: Shape) -> bytes:
    if number < 1:
        raise DamagedError
    page = content[(number - 1) * shape.page_bytes : number * shape.page_bytes]
    if not page:
        raise DamagedError
    return page.ljust(shape.page_bytes, b"\0")


def _free_pages(content: bytes, shape: Shape) -> set[int]:
    """The pages that the file lists as free, as far as the list can be read."""
    free: set[int] = set()
    if not content.startswith(MAGIC):
        return free
    trunk = int.from_bytes(content[32:36], "big")
    while trunk and trunk not in free:
        free.add(trunk)
        try:
            page = _page(content, trunk, shape)
        except DamagedError:
            break
        count = min(int.from_bytes(page[4:8], "big"), shape.page_bytes // 4 - 2)
        free.update(int.from_bytes(page[at : at + 4], "big") for at in range(8, 8 + 4 * count, 4))
        trunk = int.from_bytes(page[:4], "big")
    return free


def _rows_of(content: bytes, number: int, shape: Shape, skip: Container[int]) -> Iterator[PageRow]:
    page = _page(content, number, shape)
    head = 100 if number == 1 else 0
    if page[head] != _LEAF:
        return
    count = int.from_bytes(page[head + 3 : head + 5], "big")
    for cell in range(min(count, shape.page_bytes // 4)):
        at = head + 8 + 2 * cell
        try:
            row = _row(content, page, int.from_bytes(page[at : at + 2], "big"), shape, skip)
        except (DamagedError, UnicodeDecodeError):
            continue
        if row is not None:
            yield row


def _row(content: bytes, page: bytes, at: int, shape: Shape, skip: Container[int]) -> PageRow | None:
    length, at = _varint(page, at)
    key, at = _varint(page, at)
    if key in skip:
        return None
    usable = shape.page_bytes - shape.spare_bytes
    if not 0 < length <= len(content):
        raise DamagedError
    here = length
    if length > usable - 35:
        least = (usable - 12) * 32 // 255 - 23
        here = least + (length - least) % (usable - 4)
        here = here if here <= usable - 35 else least
    payload = page[at : at + here]
    if here < length:
        more = int.from_bytes(page[at + here : at + here + 4], "big")
        payload += _overflow(content, more, length - here, shape)
    if len(payload) < length:
        raise DamagedError
    return PageRow(key, _values(payload))


def _overflow(content: bytes, number: int, length: int, shape: Shape) -> bytes:
    """The rest of a row that did not fit into its leaf: a chain of pages."""
    parts = []
    while length > 0:
        page = _page(content, number, shape)
        part = page[4 : shape.page_bytes - shape.spare_bytes][:length]
        parts.append(part)
        length -= len(part)
        number = int.from_bytes(page[:4], "big")
    return b"".join(parts)


def _values(payload: bytes) -> tuple[Value, ...]:
    end, at = _varint(payload, 0)
    if not at <= end <= len(payload):
        raise DamagedError
    kinds: list[int] = []
    while at < end and len(kinds) < _MOST_COLUMNS:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    found: list[Value] = []
    for kind in kinds:
        size = _WHOLE.get(kind, 8 if kind == 7 else (kind - 12) // 2 if kind >= 12 else 0)
        data = payload[end : end + size]
        if len(data) < size:
            raise DamagedError
        end += size
        found.append(_value(kind, data))
    return tuple(found)


def _value(kind: int, data: bytes) -> Value:
    if kind in _WHOLE:
        return int.from_bytes(data, "big", signed=True)
    if kind in (8, 9):
        return kind - 8
    return data.decode() if kind >= 13 and kind % 2 else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for count in range(9):
        if at + count >= len(data):
            raise DamagedError
        byte = data[at + count]
        if count == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count + 1
    raise DamagedError
