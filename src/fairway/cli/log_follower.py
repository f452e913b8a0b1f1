"""Follows what a job writes, over its restarts and over those of the scheduler."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.client import Client

LOOK_EVERY_S = 0.25
_ENDED = frozenset(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"))


def write(piece: bytes, to: TextIO) -> None:
    """Write bytes unchanged; in tests, standard output may be a text stream."""
    to.flush()
    stream = getattr(to, "buffer", None)
    if stream is None:
        to.write(piece.decode(errors="replace"))
    else:
        stream.write(piece)
    to.flush()


def refuse_array(told: dict[str, Any]) -> None:
    """Refuse an array: only one task can be followed."""
    if "tasks" in told:
        raise InputError(f"{told['id']} is an array; name one of its tasks, such as {told['tasks'][0]['id']}")


def ranks_of(told: dict[str, Any]) -> list[int]:
    """The ranks that a job has had so far."""
    asked, history = told["request"], told["history"]
    if asked.get("processes") == "per_gpu":
        return list(range(max((len(one["gpus"]) for one in history), default=0)))
    alone = asked.get("slurm_env", False)
    return list(range(max((1 if alone else len(one.get("nodes", ())) or 1 for one in history), default=0)))


def _refuse_if_nobody_reads(stream: TextIO) -> None:
    """Fail if the reader of a pipe is gone. Otherwise that would be noticed only at the next line."""
    try:
        number = stream.fileno()
        piped = stat.S_ISFIFO(os.fstat(number).st_mode)
    except (OSError, ValueError):
        return
    poll = select.poll()
    poll.register(number, 0)
    if piped and any(seen & select.POLLERR for _, seen in poll.poll(0)):
        raise BrokenPipeError


class Follower:
    """Shows the logs of all ranks of a job as they grow.

    Each rank is followed by a thread of its own, which knows how far it has read: when the scheduler is restarted it
    reads on from there, and nothing is shown twice or lost.
    """

    def __init__(
        self, client: Client, job: str, *, rank: int | None = None, tail: int | None = None, to: TextIO | None = None
    ) -> None:
        self._client = client
        self._to = to or sys.stdout
        self._job = job
        self._rank = rank
        self._tail = tail
        self._read: dict[int, int] = {}
        self._rest: dict[int, bytes] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._writing = threading.Lock()
        self._over = self._several = False
        self._told: dict[str, Any] = {}
        self._problem: Exception | None = None

    def run(self) -> None:
        """Show everything until the job has ended."""
        self._over = False
        self._threads = {rank: thread for rank, thread in self._threads.items() if thread.is_alive()}
        while True:
            told = self._shown()
            self._told = told
            refuse_array(told)
            if self._problem is not None:
                raise self._problem
            for stream in {self._to, sys.stdout}:
                _refuse_if_nobody_reads(stream)
            ranks = ranks_of(told) if self._rank is None else [self._rank]
            self._several = len(ranks) > 1
            for rank in ranks:
                if rank not in self._threads:
                    thread = threading.Thread(target=self._follow, args=(rank,), daemon=True)
                    self._threads[rank] = thread
                    thread.start()
            if told["state"] in _ENDED or self._is_enough(told):
                self._over = True
                for thread in self._threads.values():
                    thread.join()
                self._finish()
                if self._problem is not None:
                    raise self._problem
                return
            time.sleep(LOOK_EVERY_S)

    def _is_enough(self, told: dict[str, Any]) -> bool:
        """Whether everything to show has been written, although the job goes on."""
        return False

    def _shown(self) -> dict[str, Any]:
        """The job; waits for a scheduler that is being restarted."""
        from fairway.cli import output
        from fairway.client import NotUpError

        told = False
        while True:
            try:
                return self._client.show(self._job)
            except NotUpError as error:
                if not self._threads:
                    raise
                if not told:
                    output.say("note", f"{error}; the job keeps running; waiting for the scheduler to come back")
                    told = True
                time.sleep(LOOK_EVERY_S)

    def _follow(self, rank: int) -> None:
        """Show what one rank writes until the job is over."""
        from fairway.client import ClientError, RefusedError

        while True:
            over, where = self._over, self._place(rank)
            try:
                self._show(rank, self._client.logs(self._job, rank=rank, follow=True, **where))
            except (RefusedError, OSError) as error:
                # It is for the main thread to complain, and to end.
                self._problem = error
                return
            except ClientError:
                over = False
            if over:
                return
            time.sleep(LOOK_EVERY_S / 2)

    def _place(self, rank: int) -> dict[str, int]:
        """Where to read on; None if the beginning of the log was left out."""
        read = self._read.setdefault(rank, 0)
        if self._tail is not None:
            return {"tail": 0 if read else self._tail}
        return {"offset": read} if read else {}

    def _show(self, rank: int, pieces: Iterator[bytes]) -> None:
        """Write pieces as they come. With several ranks, write whole lines, each with a mark."""
        for piece in pieces:
            self._read[rank] += len(piece)
            text = self._rest.pop(rank, b"") + piece
            if self._several:
                *lines, self._rest[rank] = text.split(b"\n")
                text = b"".join(f"[{rank}] ".encode() + line + b"\n" for line in lines)
            with self._writing:
                write(text, self._to)

    def _finish(self) -> None:
        """Show unfinished last lines."""
        for rank, rest in sorted(self._rest.items()):
            if rest:
                write(f"[{rank}] ".encode() + rest + b"\n", self._to)
        self._rest = {}
