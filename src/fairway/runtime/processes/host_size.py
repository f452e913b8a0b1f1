"""How many CPUs and how much memory a machine has."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_GROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
"""What a container may have; there is no such file, or no number in it, outside of containers."""


class HostSize(NamedTuple):
    """The CPUs and the memory of a machine. Of several machines: the most of each."""

    cpus: int
    memory_bytes: int
    machines: int = 1


def this_machine() -> HostSize:
    """The size of this machine, or of the container that we are in."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        memory_bytes = min(memory_bytes, int(_GROUP_MEMORY.read_text(encoding="ascii")))
    return HostSize(os.cpu_count() or 1, memory_bytes)
