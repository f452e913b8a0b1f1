"""The last lines in the logs of ranks, and what they say about the end."""

from __future__ import annotations

import os
from pathlib import Path

_TAIL_BYTES = 8192
_OUT_OF_MEMORY = (b"out of memory", b"outofmemoryerror", b"memoryerror", b"cannot allocate memory", b"bad_alloc")


def said_no_memory(directory: Path, ranks: int) -> bool:
    """Whether the log of a rank ends with the words of a program that ran out of memory."""
    ends = [_end_of(directory / f"rank-{rank}.log") for rank in range(ranks)]
    return any(mark in end for mark in _OUT_OF_MEMORY for end in ends)


def _end_of(log: Path) -> bytes:
    """The end of a log in lower case, with the end of its older piece if it was just cut."""
    end = tail(log)
    if len(end) < _TAIL_BYTES:
        end = tail(log.with_name(log.name + ".1"), _TAIL_BYTES - len(end)) + end
    return end.lower()


def tail(log: Path, most_bytes: int = _TAIL_BYTES) -> bytes:
    """The end of a file."""
    try:
        # Do not wait: a job may have put a pipe in its place.
        fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, most_bytes, max(0, os.fstat(fd).st_size - most_bytes))
    except OSError:
        return b""
    finally:
        os.close(fd)
