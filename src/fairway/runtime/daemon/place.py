"""Where a scheduler runs its jobs: this machine, or the machines of a Ray cluster."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairway.runtime.daemon.settings import RAY, REMEMBERED, Choice
from fairway.runtime.processes import containment
from fairway.runtime.processes.local import LocalSite
from fairway.runtime.processes.machine import KnownGpus, Machine, found_machine, wish_of
from fairway.runtime.processes.movable_memory import MovableMemory, saver_folder
from fairway.runtime.processes.ray_site import RaySite
from fairway.runtime.processes.remote_machines import NOTHING_KNOWN, Known
from fairway.runtime.processes.site import Site

KNOWN_GPUS = "known_gpus"
"""The fact of the journal about the real GPUs of this machine (`KnownGpus`)."""


@dataclass(frozen=True)
class SitePlace:
    """A site with what is known about it at the start. `contained` says how processes of jobs are contained, and `kept`
    which of their limits are. The journal keeps the `facts` for the next time."""

    machine: Machine
    site: Site
    contained: Callable[[], str]
    kept: Callable[[], Sequence[str]]
    close: Callable[[], None]
    facts: Mapping[str, Any]


def found_place(choice: Choice, folder: Path, last: Mapping[str, Any], machine: Machine | None = None) -> SitePlace:
    """The place that the options choose. `last` are the facts of the journal."""
    if choice.ray is None:
        known = KnownGpus.of_plain(last.get(KNOWN_GPUS))
        return _local(folder, machine or found_machine(choice.gpus, known=known), choice.gpus)
    return _on_ray(ray_site(choice, folder, last))


def ray_site(choice: Choice, folder: Path, last: Mapping[str, Any]) -> RaySite:
    """The machines of a Ray cluster. `InputError` if there are none that can be used."""
    assert choice.ray is not None
    owner = f"{socket.gethostname()}:{folder.absolute()}"
    about = (choice.ray, choice.root(folder).absolute(), choice.gpus, owner, known_nodes(last))
    return RaySite(*about, log=folder / "ray-bridge.log")


def known_nodes(last: Mapping[str, Any]) -> Known:
    """The nodes of the last scheduler on this cluster. One that ran on a single machine knew none."""
    if not str(last.get(REMEMBERED["engine"].fact, "")).startswith(RAY):
        return NOTHING_KNOWN
    try:
        nodes, devices = last["machine"]
        return Known([(str(kind), int(gpus), str(name)) for kind, gpus, name in nodes], devices)
    except (KeyError, ValueError, TypeError):
        return NOTHING_KNOWN


def _on_ray(site: RaySite) -> SitePlace:
    machine = Machine(site.cluster, site.devices)
    return SitePlace(machine, site, site.contained, site.limits_kept, site.close, {})


def _local(folder: Path, machine: Machine, gpus: str) -> SitePlace:
    groups = containment.found(folder)
    memory, facts = None, dict[str, Any]()
    nvml, devices = machine.nvml, machine.devices
    if nvml is not None and devices is not None:
        facts[KNOWN_GPUS] = KnownGpus(wish_of(gpus), machine.cluster, devices).plain()
        memory = MovableMemory(folder, lambda gpu: nvml.memory(devices[gpu]), saver_folder())
    site = LocalSite(
        groups,
        memory,
        nvml=nvml,
        devices=devices,
        executors=folder / "executors",
    )

    def close() -> None:
        groups.close()
        if memory is not None:
            memory.close()

    return SitePlace(machine, site, groups.words, groups.kept, close, facts)
