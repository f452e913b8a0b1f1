"""What a scheduler needs of the place where processes run. The real place is `local`; tests have a simulated one.

An attempt is one start of a job's processes. While it lives, it is controlled by its *handle*. Everything that has to
outlive the scheduler belongs to the site: a scheduler that starts again finds every attempt there, running or ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from fairway.core.batch import Split


class Moment(NamedTuple):
    """A moment: the time of day, and the seconds since the boot `boot` of the machine, which cannot be set.

    `boot` is "" if only the time of day is known.
    """

    date_s: float
    boot: str = ""
    uptime_s: float = 0.0


class Outcome(NamedTuple):
    """How an attempt ended: exit codes by rank, why it was stopped ("" if it was not), and what went wrong.

    `ended` is when the last process was gone. `memory_kills` counts the processes that the kernel killed because memory
    was short; -1 if it does not say. `stop_s` is the time from the request to stop to the end, if there was a request.
    `ran_s` is how long the ranks ran, not counting the time in which they were suspended. `said_no_memory`: the last
    lines of a log say that memory ran out. What is not known is None.
    """

    codes: tuple[int, ...]
    cause: str = ""
    killed: bool = False
    problem: str = ""
    ended: Moment | None = None
    memory_kills: int = -1
    stop_s: float | None = None
    ran_s: float | None = None
    said_no_memory: bool = False


class GpuMemory(NamedTuple):
    """The memory of a GPU in bytes."""

    free: int
    total: int


class MemoryPlace(NamedTuple):
    """Where the GPU memory of an attempt is: on the GPU, in host memory, or on the way.

    `ways` says how it left: "moved" by its processes, by the "driver", or by both. `seconds` is how long the last move
    took. `problem` says why it, or what stayed of it, could not leave when it was last asked to.
    """

    place: Literal["gpu", "leaving", "host", "returning"] = "gpu"
    bytes: int = 0
    ways: tuple[str, ...] = ()
    seconds: float = 0.0
    problem: str = ""


REFUSED = "refused"
"""The cause of an attempt that the machine could not start."""
LOST = Outcome((), "lost", problem="its keeper is gone")


class Handle(Protocol):
    """A live attempt, as far as the site knows."""

    @property
    def pid(self) -> int:
        """The pid of the attempt's keeper."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether the ranks have been asked to stop, for any reason. They cannot be suspended any more."""
        ...

    @property
    def throttled(self) -> float:
        """The part of the time in which the ranks were last told to compute."""
        ...

    @property
    def memory(self) -> MemoryPlace:
        """Where the GPU memory of the ranks is."""
        ...

    @property
    def ready_bytes(self) -> int:
        """The host memory that the ranks keep ready for a move."""
        ...

    def move_out(self, most_bytes: int, *, held_bytes: int = 0, everything: bool = False) -> bool:
        """Ask suspended ranks to leave the GPU's memory, if that takes at most this much host memory.

        They are known to have `held_bytes`, if that is not 0. With `everything`, nothing may stay, not even what their
        processes cannot move themselves; that may also be asked of ranks that are out otherwise. `memory` says what
        becomes of it. Ranks that go on get it back first. False if that could not be written.
        """
        ...

    def get_ready(self, most_bytes: int) -> None:
        """Let running ranks get host memory ready for a move, at most this much."""
        ...

    def tell_plan(self, place: int | None) -> bool:
        """Tell who hosts the job how many others would go on before it; None if many would. False if that failed."""
        ...

    def stop(self, *, hurry: bool = False) -> None:
        """Ask the ranks to save and stop. They are killed after a grace period. `hurry`: their work is not needed."""
        ...

    def pause(self) -> None:
        """Suspend the ranks in place."""
        ...

    def go_on(self, *, keep: bool = True) -> None:
        """Let suspended ranks go on. `keep`: host memory from which theirs comes back stays ready for the next time."""
        ...

    def throttle(self, part: float) -> bool:
        """Let the ranks compute for a part of the time. False if that could not be written."""
        ...

    def want(self, batch: Split, gpus: int) -> bool:
        """Ask the ranks to work through their batch like this. False if that could not be written."""
        ...

    def set_limit(self, limit_s: float | None) -> None:
        """Give the attempt another time limit, counted over all attempts. `OSError` if that fails."""
        ...


class Over(NamedTuple):
    """An attempt has ended."""

    handle: Handle
    outcome: Outcome


class Report(NamedTuple):
    """What a job has reported, and how far its file has been read."""

    lines: Sequence[Mapping[str, Any]]
    read_bytes: int


class Site(Protocol):
    """Where attempts run. Only one thread may call it, except for `wake`, which any thread may call."""

    def start(self, directory: Path, launch: Mapping[str, Any]) -> Handle:
        """Start an attempt. `OSError` if the machine cannot."""
        ...

    def find(self, directory: Path, token: str) -> Handle | Outcome | None:
        """An attempt of an earlier scheduler: it lives, it has ended, or it never began and never will."""
        ...

    def is_given_up(self, directory: Path) -> bool:
        """Whether an attempt was told that its work is not needed any more: its job was cancelled."""
        ...

    def reports(self, folder: Path, read_bytes: int) -> Report:
        """What a job has reported since its file was last read."""
        ...

    def discard(self, folder: Path) -> None:
        """Set the folder of a job aside, if it is there. No attempt of it runs, and none ever will."""
        ...

    def sweep(self, jobs: Path) -> None:
        """Delete all folders in `jobs` that were set aside. Any thread may call this."""
        ...

    def gpu_memory(self, gpu: int) -> GpuMemory | None:
        """The memory of a GPU now; None if nobody can say, as for virtual GPUs."""
        ...

    def wait(self, seconds: float) -> Sequence[Over]:
        """The attempts that have ended. Waits for one, at most this many seconds."""
        ...

    def wake(self) -> None:
        """Make `wait` return now."""
        ...
