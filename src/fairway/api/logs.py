"""Logs of jobs: read from the files of their ranks, over all attempts, and followed while they run.

The log of a rank is the output of its attempts, one after the other. If one grew too large, its oldest part was cut
off; offsets count what is there now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairway.core.errors import InputError
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord

CHUNK_BYTES = 65536
POLL_S = 0.2
MOST_TAIL_BYTES = 16 * 1024 * 1024
"""How far back the last lines of a log are looked for."""
AFTER_END_S = 10.0
MOST_LINE_BYTES = 65536
"""A longer line is sent in pieces, each with a mark."""


class LogPart(NamedTuple):
    """Which part of a log: from a byte on, or only the last lines, or the whole lines among the last bytes."""

    offset: int = 0
    tail: int | None = None
    tail_bytes: int | None = None


ALL = LogPart()


@dataclass
class _Rank:
    """How far one rank's log has been read."""

    number: int
    attempt: int = 1
    at: int = 0
    rest: bytes = b""
    old_at: int | None = 0
    """How far the older part of the attempt's log has been read; None if it is not to be."""


class Logs:
    """The logs of one job. `rank` and `attempt` choose one of several."""

    def __init__(
        self, scheduler: Scheduler, record: JobRecord, *, rank: int | None = None, attempt: int | None = None
    ) -> None:
        self._record = record
        self._clock = scheduler.clock
        self._folder = scheduler.jobs_folder / record.id
        self._rank = rank
        self._attempt = attempt
        self._refuse_what_is_not_there()

    def _refuse_what_is_not_there(self) -> None:
        """Refuse a rank or an attempt that the job does not have; an empty log would hide the mistake."""
        record = self._record
        most = record.request.gpus_max if record.request.processes == "per_gpu" else 1
        had, ranks = len(record.attempts), max([most, *map(record.ranks_of, list(record.attempts))])
        if self._rank is not None and self._rank >= ranks:
            has = f"ranks 0 to {ranks - 1}" if ranks > 1 else "one process, rank 0"
            raise InputError(f"job {record.id} has {has}; there is no rank {self._rank}")
        if self._attempt is not None and self._attempt > max(had, 1):
            has = "one attempt" if had == 1 else f"{had or 'no'} attempts"
            raise InputError(f"job {record.id} has had {has}; there is no attempt {self._attempt}")

    def attempts(self) -> list[int]:
        """The attempts to read, in order."""
        known = [attempt.number for attempt in list(self._record.attempts)]
        return known if self._attempt is None else [one for one in known if one == self._attempt]

    def ranks(self) -> list[int]:
        """The ranks to read, in order: those of all attempts."""
        if self._rank is not None:
            return [self._rank]
        return list(range(max(map(self._record.ranks_of, list(self._record.attempts)), default=1)))

    def files(self, rank: int, attempt: int) -> list[Path]:
        """The files of one rank in one attempt, the older part first."""
        log = self._folder / f"attempt-{attempt}" / f"rank-{rank}.log"
        return [log.with_name(log.name + ".1"), log]

    def _begin(self, rank: int, part: LogPart) -> int:
        return part.offset if part.tail_bytes is None else self.begin_of_tail(rank, part.tail_bytes)

    def begin_of_tail(self, rank: int, tail_bytes: int) -> int:
        """The offset of the first whole line among the last bytes of a rank's log. It is not read before that."""
        files = self._all_files(rank)
        total = sum(map(_size, files))
        begin = max(total - tail_bytes, 0)
        if not begin or not tail_bytes:
            return begin
        # The byte before may end a line.
        piece = next(_from(files, begin - 1), b"")
        end = piece.find(b"\n")
        return begin if end < 0 else begin + end

    def now(self, part: LogPart = ALL) -> Iterator[bytes]:
        """What has been written so far; several ranks come one after the other, each line with its rank."""
        for rank in self.ranks():
            files = self._all_files(rank)
            pieces = _from(files, self._begin(rank, part)) if part.tail is None else _last_lines(files, part.tail)
            yield from _marked(pieces, self._mark(rank))

    async def follow(
        self, closing: Callable[[], bool], part: LogPart = ALL, *, poll_s: float = POLL_S
    ) -> AsyncIterator[bytes]:
        """What has been written, and then what is added, until the job has ended or `closing` says to stop."""
        places: dict[int, _Rank] = {}
        tail = part.tail
        if tail is None:
            places = {rank: self._place_of(rank, self._begin(rank, part)) for rank in self.ranks()}
        if tail is not None:
            for rank in self.ranks():
                places[rank] = place = self._end_of(rank)
                tailed = _marked(_last_lines(self._all_files(rank), tail, place.at), self._mark(rank))
                async for piece in _threaded(tailed):
                    yield piece
        while True:
            ended = self._is_over()
            moved = False
            for rank in self.ranks():
                place = places.setdefault(rank, _Rank(rank))
                async for piece in _threaded(self._news(place)):
                    moved = True
                    yield self._shown(place, piece)
                    if closing():
                        return
            if closing() or (ended and not moved):
                break
            if not moved:
                await asyncio.sleep(poll_s)
        for place in places.values():
            if place.rest:
                yield self._mark(place.number) + place.rest + b"\n"

    def _is_over(self) -> bool:
        """Whether the log is complete: the job has ended and its processes are gone, or the attempt is over."""
        record = self._record
        attempts = list(record.attempts)
        if self._attempt is not None and len(attempts) >= self._attempt:
            return attempts[self._attempt - 1].ended_s is not None
        if not record.state.ended:
            return False
        gone = not attempts or attempts[-1].ended_s is not None
        waited_s = self._clock.date_s(self._clock.now_s()) - (record.ended_s or 0.0)
        return gone or waited_s > record.request.grace_s + AFTER_END_S

    def _all_files(self, rank: int) -> list[Path]:
        return [file for attempt in self.attempts() for file in self.files(rank, attempt)]

    def _mark(self, rank: int) -> bytes:
        """The mark at the start of lines if there are several ranks."""
        return f"[{rank}] ".encode() if len(self.ranks()) > 1 else b""

    def _end_of(self, rank: int) -> _Rank:
        """The end of the log."""
        attempts = self.attempts()
        if not attempts:
            return _Rank(rank)
        return _Rank(rank, attempts[-1], _size(self.files(rank, attempts[-1])[1]), old_at=None)

    def _place_of(self, rank: int, offset: int) -> _Rank:
        """The place of an offset in a rank's log, or the end of the log."""
        for attempt in self.attempts():
            before, log = map(_size, self.files(rank, attempt))
            if offset < before or not offset:
                return _Rank(rank, attempt, old_at=offset)
            if offset < before + log:
                return _Rank(rank, attempt, offset - before, old_at=None)
            offset -= before + log
        return self._end_of(rank)

    def _news(self, place: _Rank) -> Iterator[bytes]:
        """What a rank has written since, attempt by attempt."""
        for attempt in self.attempts():
            if attempt < place.attempt:
                continue
            if attempt > place.attempt:
                place.attempt, place.at, place.old_at = attempt, 0, 0
            before, log = self.files(place.number, attempt)
            if place.old_at is not None:
                begin, place.old_at = place.old_at, None
                yield from _from([before], begin)
            size = _size(log)
            if size < place.at:
                # The file was cut: the unread rest is at the end of the older part.
                yield from _from([before], place.at)
                place.at = 0
            for piece in _from([log], place.at):
                place.at += len(piece)
                yield piece

    def _shown(self, place: _Rank, piece: bytes) -> bytes:
        """A piece of one rank among several: whole lines with its mark; an unfinished line waits."""
        mark = self._mark(place.number)
        if not mark:
            return piece
        text, place.rest = _whole_lines(place.rest + piece, mark)
        return text


async def _threaded(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The same pieces, read in threads: other requests do not wait for a slow disk."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _from(files: list[Path], offset: int, last_size: int | None = None) -> Iterator[bytes]:
    """The content of files one after the other, from a byte on; `last_size` is how much of the last file counts."""
    for file in files:
        try:
            with file.open("rb") as content:
                size = _size(file)
                left = last_size if last_size is not None and file == files[-1] else None
                if offset >= size > 0 or size == 0:
                    offset -= size
                    continue
                content.seek(offset)
                left = None if left is None else left - offset
                offset = 0
                while left is None or left > 0:
                    piece = content.read(CHUNK_BYTES if left is None else min(left, CHUNK_BYTES))
                    if not piece:
                        break
                    left = None if left is None else left - len(piece)
                    yield piece
        except OSError:
            continue


def _last_lines(files: list[Path], count: int, size: int | None = None) -> Iterator[bytes]:
    """The last lines of files one after the other; `size` is how much of the last file counts.

    Their beginning is looked for from the end, at most `MOST_TAIL_BYTES` back. Nothing is kept of what is read then.
    """
    if not count:
        return
    ends, total, first = 0, 0, True
    for at_file in reversed(range(len(files))):
        file = files[at_file]
        at = _size(file) if size is None or at_file < len(files) - 1 else size
        try:
            with file.open("rb") as content:
                while at > 0:
                    step = min(at, CHUNK_BYTES, MOST_TAIL_BYTES - total)
                    content.seek(at - step)
                    piece = content.read(step)
                    total += step
                    # The end of the last line does not count.
                    ends -= first and piece.endswith(b"\n")
                    first = False
                    found = piece.count(b"\n")
                    if ends + found >= count or total >= MOST_TAIL_BYTES:
                        begin = at - step + _nth_from_end(piece, count - ends)
                        yield from _from(files[at_file:], begin, size)
                        return
                    ends += found
                    at -= step
        except OSError:
            continue
    yield from _from(files, 0, size)


def _nth_from_end(piece: bytes, count: int) -> int:
    """Where the text after the n-th last end of a line begins; 0 if there are fewer."""
    at = len(piece)
    for _ in range(count):
        at = piece.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1


def _marked(pieces: Iterator[bytes], mark: bytes) -> Iterator[bytes]:
    """Every line with a mark before it, and an end to the last one; as it is where there is no mark."""
    rest = b""
    for piece in pieces:
        text, rest = _whole_lines(rest + piece, mark) if mark else (piece, b"")
        yield text
    if rest:
        yield mark + rest + b"\n"


def _whole_lines(text: bytes, mark: bytes) -> tuple[bytes, bytes]:
    """The lines of a text with a mark before each, and the unfinished rest."""
    *lines, rest = text.split(b"\n")
    if len(rest) > MOST_LINE_BYTES:
        lines, rest = [*lines, rest], b""
    return b"".join(mark + line + b"\n" for line in lines), rest
