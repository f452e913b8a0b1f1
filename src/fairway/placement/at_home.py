"""Places that are fixed: jobs whose state is in the memory of GPUs, and GPUs that no job may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairway.core.cluster import Cluster
from fairway.core.occupancy import Occupancy
from fairway.core.plan import Placer
from fairway.core.snapshot import Snapshot


class AtHome:
    """Any placement, except that jobs suspended on real GPUs resume where they are, or wait.

    `home(job)` gives the GPUs of such a job. It is empty for jobs that can go anywhere. `blocked` gives the
    blocked GPUs, by number with the reason.
    """

    def __init__(
        self, placer: Placer, home: Callable[[int], tuple[int, ...]], blocked: Callable[[], Mapping[int, str]]
    ) -> None:
        self.placer = placer
        self._home = home
        self._blocked = blocked
        self.name = placer.name
        self.located = placer.located

    def suited(self, snapshot: Snapshot, row: int) -> Placer:
        """The placement for a row."""
        home, blocked = self._home(int(snapshot.jobs[row])), self._blocked()
        placer = Fixed(home, snapshot.cluster) if home else self.placer.suited(snapshot, row)
        return Around(placer, tuple(blocked)) if blocked else placer

    def retry_s(self, snapshot: Snapshot, row: int) -> float:
        """When a row that found no place may find one."""
        return self.placer.retry_s(snapshot, row)

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        """Free GPUs for a gang."""
        return self.placer.place(occupancy, gpus, gpu_type)


class Around:
    """Any placement, but without blocked GPUs."""

    def __init__(self, placer: Placer, blocked: tuple[int, ...]) -> None:
        self.placer = placer
        self.blocked = blocked
        self.name = placer.name
        self.located = placer.located

    def suited(self, snapshot: Snapshot, row: int) -> Placer:
        """The placement for a row."""
        return Around(self.placer.suited(snapshot, row), self.blocked)

    def retry_s(self, snapshot: Snapshot, row: int) -> float:
        """When a row that found no place may find one."""
        return self.placer.retry_s(snapshot, row)

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        """Free GPUs for a gang that are not blocked."""
        scratch = occupancy.copy()
        for gpu in self.blocked:
            if not scratch.tenants(gpu) and scratch.node_of_gpu[gpu] not in scratch.down:
                scratch.take((gpu,))
        if scratch.free_by_type[gpu_type] < gpus:
            return None
        return self.placer.place(scratch, gpus, gpu_type)


class Fixed:
    """One place and no other."""

    name = "fixed"
    located = True

    def __init__(self, gpus: tuple[int, ...], cluster: Cluster) -> None:
        self.gpus = gpus
        self.gpu_type = cluster.node_type[cluster.node_of_gpu[gpus[0]]]

    def suited(self, snapshot: Snapshot, row: int) -> Placer:
        """Itself."""
        return self

    def retry_s(self, snapshot: Snapshot, row: int) -> float:
        """The job that is there may leave at any time, and that is an event."""
        return float("inf")

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        """The place, if it is free and has the wanted size and type."""
        fits = len(self.gpus) == gpus and self.gpu_type == gpu_type
        return self.gpus if fits and not any(occupancy.tenants(gpu) for gpu in self.gpus) else None
