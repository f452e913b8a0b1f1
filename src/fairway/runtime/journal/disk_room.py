"""How much room a disk has left."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

ROOM_FILES = 1000
"""With fewer free inodes than this, no new jobs are accepted: each start of a job makes about ten files."""


class Room(NamedTuple):
    """Free bytes, and how many files can still be made; infinity if the disk does not count."""

    bytes: int
    files: float


def room_in(folder: Path) -> Room:
    """The room that is left for a folder."""
    found = os.statvfs(folder)
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else math.inf)


def is_read_only(folder: Path) -> bool:
    """Whether a folder is on a file system that cannot be written."""
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False
