"""Lanes of a GPU (Salus, MLSys 2020): which jobs may be on it together without ever running out of memory.

A job has persistent memory for its whole life (weights, optimiser state) and ephemeral memory that is zero between two
iterations (activations). Iterations in a lane run one after the other, so a lane needs only the ephemeral memory of its
largest job. Lanes run in parallel.

The safety condition has two published forms. `published`: the persistent memory of all jobs is outside of the lanes,
and Σ P + Σ L ≤ C with L ≥ max T for each lane. `slide`: a lane holds the persistent memory of its jobs as well, and
Σ P + max T ≤ L for each lane with Σ L ≤ C. While the condition holds, each job can end its iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, NamedTuple

MARGIN_BYTES = 300 * 1024**2
"""What is left free on a GPU for the libraries that allocate by themselves."""

Mode = Literal["published", "slide"]
How = Literal["opened", "joined", "resized"]


class Need(NamedTuple):
    """The memory of a job: persistent, and the most that one iteration takes beside it."""

    persistent_bytes: int
    ephemeral_bytes: int

    @property
    def peak_bytes(self) -> int:
        return self.persistent_bytes + self.ephemeral_bytes


class InLane(NamedTuple):
    """A job is admitted. `how` says what had to be done for it."""

    lane: int
    how: How


class Waiting(NamedTuple):
    """A job waits, and why. `forever`: not even an empty GPU has enough memory."""

    reason: str
    forever: bool = False


@dataclass
class Lane:
    """A lane and its jobs."""

    number: int
    size_bytes: int
    jobs: dict[str, Need] = field(default_factory=dict)

    @property
    def persistent_bytes(self) -> int:
        return sum(need.persistent_bytes for need in self.jobs.values())

    @property
    def ephemeral_bytes(self) -> int:
        return max((need.ephemeral_bytes for need in self.jobs.values()), default=0)


class Lanes:
    """The lanes of one GPU, and the jobs that wait for one. `capacity_bytes` does not include the margin.

    `resizes`: a lane may grow for a job between two iterations, and shrinks when a large job leaves. `most_lanes` is
    how many jobs may compute at the same time.
    """

    def __init__(
        self,
        capacity_bytes: int,
        mode: Mode = "published",
        *,
        resizes: bool = True,
        most_lanes: int | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.mode = mode
        self.lanes: dict[int, Lane] = {}
        self.waiting: dict[str, Need] = {}
        self._resizes = resizes
        self._most_lanes = most_lanes

    def lane_of(self, job: str) -> Lane | None:
        """The lane of a job; None if it has none."""
        return next((lane for lane in self.lanes.values() if job in lane.jobs), None)

    @property
    def used_bytes(self) -> int:
        """What the condition counts: lanes, and persistent memory outside of them."""
        lanes = sum(lane.size_bytes for lane in self.lanes.values())
        return lanes if self.mode == "slide" else lanes + sum(lane.persistent_bytes for lane in self.lanes.values())

    @property
    def free_bytes(self) -> int:
        """What no lane and no job has."""
        return self.capacity_bytes - self.used_bytes

    def is_safe(self) -> bool:
        """Whether the safety condition holds."""
        enough = all(lane.size_bytes >= self._least_bytes(lane) for lane in self.lanes.values())
        return enough and self.used_bytes <= self.capacity_bytes

    def request(self, job: str, need: Need) -> InLane | Waiting:
        """Admit a job, or let it wait behind the others."""
        if job in self.waiting or self.lane_of(job) is not None:
            raise ValueError(f"{job} is here already")
        self.waiting[job] = need
        return self._admitted(job, need) or self.why(job)

    def why(self, job: str) -> Waiting:
        """Why a job waits."""
        need = self.waiting[job]
        about = f"it needs {_gb(need.persistent_bytes)} and {_gb(need.ephemeral_bytes)} in each iteration"
        if need.peak_bytes > self.capacity_bytes:
            return Waiting(f"{about}; jobs on this GPU can have {_gb(self.capacity_bytes)}", forever=True)
        return Waiting(f"{about}; {_gb(max(self.free_bytes, 0))} of {_gb(self.capacity_bytes)} are free")

    def release(self, job: str) -> dict[str, InLane]:
        """A job leaves. Returns the jobs that are admitted instead; those that came first are tried first."""
        self.waiting.pop(job, None)
        lane = self.lane_of(job)
        if lane is not None:
            del lane.jobs[job]
            self._settle(lane)
        return self.retry()

    def retry(self) -> dict[str, InLane]:
        """Try all jobs that wait, in the order in which they came. One that does not fit does not hold up others."""
        tried = ((job, self._admitted(job, need)) for job, need in list(self.waiting.items()))
        return {job: found for job, found in tried if found is not None}

    def change(self, job: str, need: Need) -> InLane | Waiting:
        """A job was measured between two iterations. If it does not fit any more, it waits before all others."""
        if job in self.waiting:
            self.waiting[job] = need
            return self._admitted(job, need) or self.why(job)
        lane = self.lane_of(job)
        if lane is None:
            raise KeyError(job)
        lane.jobs[job] = need
        if self._fits_as_it_is(lane) or self._grows(lane):
            self._settle(lane)
            return InLane(lane.number, "resized")
        del lane.jobs[job]
        self._settle(lane)
        self.waiting = {job: need, **self.waiting}
        return self._admitted(job, need) or self.why(job)

    def _least_bytes(self, lane: Lane) -> int:
        """How large a lane has to be for its jobs."""
        return lane.ephemeral_bytes + (lane.persistent_bytes if self.mode == "slide" else 0)

    def _fits_as_it_is(self, lane: Lane) -> bool:
        return lane.size_bytes >= self._least_bytes(lane) and self.used_bytes <= self.capacity_bytes

    def _grows(self, lane: Lane) -> bool:
        before = lane.size_bytes
        lane.size_bytes = max(before, self._least_bytes(lane))
        if self._resizes and self.used_bytes <= self.capacity_bytes:
            return True
        lane.size_bytes = before
        return False

    def _settle(self, lane: Lane) -> None:
        """After a change: close a lane without jobs, and take back what the others do not need."""
        if not lane.jobs:
            del self.lanes[lane.number]
        elif self._resizes:
            lane.size_bytes = self._least_bytes(lane)

    def _admitted(self, job: str, need: Need) -> InLane | None:
        found = self._opened(job, need) or self._joined(job, need)
        if found is not None:
            del self.waiting[job]
        return found

    def _opened(self, job: str, need: Need) -> InLane | None:
        if need.peak_bytes > self.free_bytes or len(self.lanes) == self._most_lanes:
            return None
        size_bytes = need.peak_bytes if self.mode == "slide" else need.ephemeral_bytes
        number = next(number for number in count() if number not in self.lanes)
        lane = self.lanes[number] = Lane(number, size_bytes, {job: need})
        return InLane(lane.number, "opened")

    def _joined(self, job: str, need: Need) -> InLane | None:
        """Join the lane that fits best: the smallest in which all stay safe. Else the smallest that can grow.

        Of lanes of one size, the one with the fewest jobs is taken.
        """
        by_size = sorted(self.lanes.values(), key=lambda lane: (lane.size_bytes, len(lane.jobs), lane.number))
        return self._taken_in(job, need, by_size, self._fits_as_it_is, "joined") or self._taken_in(
            job, need, by_size, self._grows, "resized"
        )

    def _taken_in(
        self, job: str, need: Need, lanes: Iterable[Lane], fits: Callable[[Lane], bool], how: How
    ) -> InLane | None:
        for lane in lanes:
            lane.jobs[job] = need
            if fits(lane):
                return InLane(lane.number, how)
            del lane.jobs[job]
        return None


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
