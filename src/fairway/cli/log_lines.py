"""`fairway logs --json`: what a job has written, each line as an object that says which attempt and rank wrote it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fairway.cli.log_follower import LOOK_EVERY_S, Follower, ranks_of, refuse_array, write

if TYPE_CHECKING:
    from fairway.client import Client

MOST_LINE_BYTES = 65536
"""A longer line is printed in pieces, so that a job that never ends a line is still shown."""


class LineSplitter:
    """Cuts a stream of pieces into lines; an unfinished line waits for its end."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MOST_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return lines

    def last(self) -> list[bytes]:
        """The unfinished last line, if there is one."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def written_lines(client: Client, job: str, *, rank: int | None, attempt: int | None, tail: int | None) -> bool:
    """Print the lines written so far, rank by rank, of one attempt or all; whether there were any."""
    told = client.show(job)
    refuse_array(told)
    _refuse_what_is_not_there(client, job, rank, attempt)
    attempts = [one["number"] for one in told["history"] if attempt in (None, one["number"])]
    found = False
    for each in ranks_of(told) if rank is None else [rank]:
        for number, line in _of_rank(client, job, each, attempts, tail):
            found = True
            _tell(job, number, each, line)
    return found


def _of_rank(client: Client, job: str, rank: int, attempts: list[int], tail: int | None) -> Iterator[tuple[int, bytes]]:
    """The lines of a rank, each with its attempt: all of them, or the last few."""
    if tail is not None:
        yield from _last_of_rank(client, job, rank, attempts, tail)
        return
    for number in attempts:
        for line in _cut(client.logs(job, rank=rank, attempt=number)):
            yield number, line


def _last_of_rank(client: Client, job: str, rank: int, attempts: list[int], tail: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for number in reversed(attempts):
        missing = tail - len(found)
        if missing <= 0:
            break
        found[:0] = [(number, line) for line in _cut(client.logs(job, rank=rank, attempt=number, tail=missing))]
    return found


def _cut(pieces: Iterator[bytes]) -> Iterator[bytes]:
    lines = LineSplitter()
    for piece in pieces:
        yield from lines.of(piece)
    yield from lines.last()


def _tell(job: str, attempt: int, rank: int, line: bytes) -> None:
    told = {"job": job, "attempt": attempt, "rank": rank, "line": line.decode(errors="replace")}
    write((json.dumps(told, ensure_ascii=False) + "\n").encode(), sys.stdout)


def _refuse_what_is_not_there(client: Client, job: str, rank: int | None, attempt: int | None) -> None:
    """Let the scheduler refuse a rank or an attempt that does not exist."""
    for _ in client.logs(job, rank=rank, attempt=attempt, tail=0):
        pass


class LineFollower(Follower):
    """Prints the lines of all ranks of a job as they are written, attempt by attempt."""

    def __init__(self, client: Client, job: str, *, rank: int | None, attempt: int | None, tail: int | None) -> None:
        super().__init__(client, job, rank=rank, tail=tail)
        self._attempt = attempt

    def run(self) -> None:
        """Print everything until the job, or the chosen attempt, has ended."""
        _refuse_what_is_not_there(self._client, self._job, self._rank, self._attempt)
        super().run()

    def _is_enough(self, told: dict[str, Any]) -> bool:
        if self._attempt is None or len(told["history"]) < self._attempt:
            return False
        return told["history"][self._attempt - 1]["ended_s"] is not None

    def _follow(self, rank: int) -> None:
        """Print what one rank writes, attempt by attempt."""
        from fairway.client import RefusedError

        try:
            number, tail = self._begin(rank)
            while self._has_attempt(number):
                self._follow_attempt(rank, number, tail)
                if self._attempt is not None:
                    return
                number, tail = number + 1, None
        except (RefusedError, OSError) as error:
            # The main thread reports this and ends.
            self._problem = error

    def _begin(self, rank: int) -> tuple[int, int | None]:
        """The first attempt to follow, and how many of its last lines to print; earlier attempts are printed here."""
        attempts = [one["number"] for one in self._told["history"] if self._attempt in (None, one["number"])]
        if self._tail is None or not attempts:
            return self._attempt or 1, self._tail
        there = _last_of_rank(self._client, self._job, rank, attempts[-1:], self._tail)
        if len(there) >= self._tail:
            return attempts[-1], self._tail
        for number, line in _last_of_rank(self._client, self._job, rank, attempts[:-1], self._tail - len(there)):
            self._say(number, rank, line)
        return attempts[-1], None

    def _has_attempt(self, number: int) -> bool:
        """Wait for an attempt; False if there will not be one."""
        while True:
            over = self._over
            if len(self._told["history"]) >= number:
                return True
            if over:
                return False
            time.sleep(LOOK_EVERY_S / 2)

    def _follow_attempt(self, rank: int, number: int, tail: int | None) -> None:
        """Print what a rank writes in one attempt until it is over; wait for a scheduler that is being restarted."""
        from fairway.client import ClientError, RefusedError

        lines, read = LineSplitter(), 0
        while True:
            history = self._told["history"]
            over = self._over or len(history) > number or history[number - 1]["ended_s"] is not None
            # The offset is not known if the beginning of the log was left out.
            where = {"offset": read} if tail is None else {"tail": 0 if read else tail}
            try:
                for piece in self._client.logs(self._job, rank=rank, attempt=number, follow=True, **where):
                    read += len(piece)
                    for line in lines.of(piece):
                        self._say(number, rank, line)
            except RefusedError:
                raise
            except ClientError:
                over = False
            if over:
                for line in lines.last():
                    self._say(number, rank, line)
                return
            time.sleep(LOOK_EVERY_S / 2)

    def _say(self, attempt: int, rank: int, line: bytes) -> None:
        with self._writing:
            _tell(self._job, attempt, rank, line)
