"""The new part of a rank's log, a bounded piece at a time. What a job writes is not trusted: see `LogTail`."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 32768
"""The most bytes that are read at a time. Of a log that grows faster, the rest is skipped."""


def list_anew(folder: Path) -> None:
    """Make a file system that remembers that a file was not there ask again: shared ones do so for up to a minute.

    What is in a file that is there needs no such call, since they check that whenever the file is opened.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        next(entries, None)


class LogPiece(NamedTuple):
    """A piece of a log. `wrote_s` is the time of day of the last write; `gap`: something before it was skipped."""

    text: bytes
    wrote_s: float
    gap: bool = False


class LogTail:
    """Reads a log from where it last stopped. The first time, its beginning is read as well, where settings are told.

    The path may be any kind of file, a pipe or a link: then there is nothing. A log that was cut is read from its
    beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = -1

    def new_pieces(self) -> list[LogPiece]:
        """What was written since the last time; at most two pieces."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                return []
            return self._read(fd, about)
        except OSError:
            return []
        finally:
            os.close(fd)

    def _read(self, fd: int, about: os.stat_result) -> list[LogPiece]:
        size, first = about.st_size, self._inode < 0
        if about.st_ino != self._inode or size < self._offset:
            self._offset = 0
        again = not first and self._offset == 0
        self._inode = about.st_ino
        if size == self._offset:
            return []
        begin, pieces = max(self._offset, size - MOST_BYTES), []
        if first and begin > 0:
            pieces.append(LogPiece(os.pread(fd, min(MOST_BYTES, begin), 0), about.st_mtime))
        text = os.pread(fd, size - begin, begin)
        pieces.append(LogPiece(text, about.st_mtime, gap=begin > self._offset or again))
        self._offset = begin + len(text)
        return pieces
