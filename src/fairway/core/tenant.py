"""Tenants that share a cluster, and the cells of GPUs that each has reserved."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairway.core.cluster import MAX_GPUS
from fairway.core.errors import InputError

_CELLS = re.compile(r"(?:(?P<type>[A-Za-z][\w.+-]*):)?(?:(?P<count>[0-9]+)x)?(?P<gpus>[0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class CellSpec:
    """`count` cells of `gpus` GPUs each. The type may be left out if the cluster has only one."""

    count: int
    gpus: int
    gpu_type: str = ""

    @staticmethod
    def of(text: str) -> CellSpec:
        """Cells as a user writes them: `2x8`, `v100:2x8`, or `4` for one cell of 4 GPUs.

        >>> CellSpec.of("v100:2x8")
        CellSpec(count=2, gpus=8, gpu_type='v100')
        """
        match = _CELLS.fullmatch(text.strip())
        if match is None:
            raise InputError(f"{text!r} is not COUNTxGPUS or TYPE:COUNTxGPUS, like 2x8 or v100:2x8")
        count, gpus = (int(number[:12]) for number in (match["count"] or "1", match["gpus"]))
        if not (count and gpus):
            raise InputError(f"{text!r} has no GPUs")
        if count * gpus > MAX_GPUS:
            raise InputError(f"{text!r} is more than {MAX_GPUS} GPUs")
        return CellSpec(count, gpus, (match["type"] or "").lower())

    def __str__(self) -> str:
        return f"{self.gpu_type}:{self.count}x{self.gpus}" if self.gpu_type else f"{self.count}x{self.gpus}"


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant, its reservation, and which jobs are its own: those in its queues, otherwise those of its users.

    Without a list of queues, its queue is the one with the tenant's name.
    """

    name: str
    cells: tuple[CellSpec, ...]
    queues: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.queues:
            object.__setattr__(self, "queues", (self.name,))
        if not self.cells:
            raise InputError(f"tenant {self.name!r} reserves no cells")
        if not self.name:
            raise InputError("a tenant has no name")

    @staticmethod
    def of(name: str, *cells: str, **more: tuple[str, ...]) -> TenantSpec:
        """A tenant in one line: `TenantSpec.of("vision", "2x8", "1x4", users=("ann",))`."""
        return TenantSpec(name, tuple(CellSpec.of(text) for text in cells), **more)
