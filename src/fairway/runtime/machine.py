"""What this machine has to compute on: its GPUs, or slots that stand for some where there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError

MOST_SLOTS = 4096


@dataclass(frozen=True)
class Machine:
    """A cluster of one node. `devices` names its GPUs for CUDA, by their numbers here; None if they are virtual."""

    cluster: Cluster
    devices: Sequence[str] | None


def virtual_machine(slots: int) -> Machine:
    """Slots on the CPU: everything works as with GPUs, and any slot is as good as another."""
    if not 1 <= slots <= MOST_SLOTS:
        raise InputError(f"{slots} virtual GPUs are not from 1 to {MOST_SLOTS}")
    node = Node(socket.gethostname() or "localhost", "cpu", slots)
    return Machine(Cluster.of([node], [GpuType("cpu", 0, 0.0, 1.0)], f"cpu:{slots}"), None)


def found_machine(gpus: str = "auto") -> Machine:
    """The machine as asked for: `auto` takes its GPUs, or a slot per core where there is none; a number makes slots."""
    if gpus == "auto":
        return virtual_machine(len(os.sched_getaffinity(0)))
    if not gpus.isdigit():
        raise InputError(f"--gpus {gpus!r} is neither a number nor 'auto'")
    return virtual_machine(int(gpus))
