"""What this machine computes on: its GPUs, or virtual GPUs if there are none."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError
from fairway.runtime.daemon.nvml import Gpu, Nvml, gpu_types, visible

MOST_SLOTS = 4096
_REAL = "nvidia"


@dataclass(frozen=True)
class Machine:
    """A cluster on this machine: one node for each GPU type.

    `devices` names its GPUs for CUDA, by their numbers here; None if they are virtual. `left_out` says which GPUs are
    not used and why. `nvml` answers questions about real GPUs.
    """

    cluster: Cluster
    devices: Sequence[str] | None
    left_out: tuple[str, ...] = ()
    nvml: Nvml | None = None

    @property
    def text(self) -> str:
        """The machine in a few words."""
        kinds = [f"{node.gpus} × {node.gpu_type}" for node in self.cluster.nodes]
        virtual = " (virtual GPUs, on the CPU)" if self.devices is None else ""
        return ", ".join(kinds) + virtual


def virtual_machine(slots: int) -> Machine:
    """Virtual GPUs on the CPU. Everything works as with GPUs, and all slots are interchangeable."""
    if not 1 <= slots <= MOST_SLOTS:
        raise InputError(f"there can be 1 to {MOST_SLOTS} virtual GPUs, not {slots}")
    node = Node(_host(), "cpu", slots)
    return Machine(Cluster.of([node], [GpuType("cpu", 0, 0.0, 1.0)], f"cpu:{slots}"), None)


def nvidia_machine(nvml: Nvml, wanted: Sequence[int] | None = None) -> Machine | None:
    """The machine's GPUs, or those with the numbers `wanted`; None if no GPU can be used."""
    known = nvml.gpus()
    for index in wanted or ():
        if index not in {gpu.number for gpu in known}:
            raise InputError(f"there is no GPU {index} here; there are {len(known)}")
    chosen = visible(known) if wanted is None else [gpu for gpu in known if gpu.number in wanted]
    sound = [gpu for gpu in chosen if not gpu.problem]
    left_out = tuple(_told(gpu) for gpu in chosen if gpu.problem)
    if not sound:
        return None
    by_type: dict[str, list[Gpu]] = {}
    types: dict[str, GpuType] = {}
    for gpu, kind in zip(sound, gpu_types(sound), strict=True):
        by_type.setdefault(kind.name, []).append(gpu)
        types[kind.name] = kind
    host = _host()
    nodes = [Node(host if len(by_type) == 1 else f"{host}-{name}", name, len(them)) for name, them in by_type.items()]
    text = ",".join(f"{name}:{len(them)}" for name, them in by_type.items())
    devices = [gpu.uuid for them in by_type.values() for gpu in them]
    return Machine(Cluster.of(nodes, types.values(), text), devices, left_out, nvml)


def found_machine(gpus: str = "auto") -> Machine:
    """The machine that `gpus` asks for.

    `auto` takes its GPUs, or one virtual GPU per core if there are none. `nvidia` takes its GPUs and nothing else,
    `nvidia:0,2` some of them. A number makes that many virtual GPUs.
    """
    if gpus == "auto" or gpus == _REAL or gpus.startswith(f"{_REAL}:"):
        nvml = Nvml.opened()
        machine = None if nvml is None else nvidia_machine(nvml, _numbers(gpus))
        if machine is not None:
            return machine
        left_out = () if nvml is None else tuple(map(_told, (gpu for gpu in nvml.gpus() if gpu.problem)))
        if gpus != "auto":
            raise InputError(f"--gpus {gpus}: no NVIDIA GPU can be used here" + "".join(f"; {one}" for one in left_out))
        return replace(virtual_machine(min(len(os.sched_getaffinity(0)), MOST_SLOTS)), left_out=left_out)
    if not (gpus.isascii() and gpus.isdigit() and len(gpus) < 10):
        raise InputError(f"--gpus {gpus!r} is neither a number, nor 'auto', 'nvidia' or 'nvidia:0,2'")
    return virtual_machine(int(gpus))


def _numbers(gpus: str) -> list[int] | None:
    told = gpus.partition(":")[2]
    if not told:
        return None
    words = told.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise InputError(f"--gpus {gpus!r}: GPUs are numbers with commas between them, as in 'nvidia:0,2'")
    return [int(word) for word in words]


def _told(gpu: Gpu) -> str:
    return f"GPU {gpu.number} ({gpu.name}): {gpu.problem}"


def _host() -> str:
    return socket.gethostname() or "localhost"
