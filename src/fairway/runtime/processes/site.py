"""What a scheduler needs of the place where processes run. The real place is `local`; tests have a simulated one.

An attempt is one start of a job's processes. Its *handle* is how it is spoken to while it lives. All that has to
outlive the scheduler belongs to the site: a scheduler that starts again finds every attempt there, running or ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Outcome(NamedTuple):
    """How an attempt ended: exit codes by rank, why it was stopped ("" if it was not), and what went wrong.

    `memory_kills` counts the processes that the kernel killed for want of memory; -1 where it does not say. `stop_s` is
    the time from the request to stop to the end, if there was a request. `said_no_memory`: a log says so in its last
    lines.
    """

    codes: tuple[int, ...]
    cause: str = ""
    killed: bool = False
    problem: str = ""
    ended_s: float | None = None
    memory_kills: int = -1
    stop_s: float | None = None
    said_no_memory: bool = False


LOST = Outcome((), "lost", problem="its keeper is gone")


class Handle(Protocol):
    """An attempt that lives, as far as the site knows."""

    @property
    def pid(self) -> int:
        """The process that keeps the attempt."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether the ranks have been asked to stop, for whatever reason. They are not suspended any more."""
        ...

    @property
    def throttled(self) -> float:
        """The part of the time in which the ranks were last told to compute."""
        ...

    def stop(self, *, hurry: bool = False) -> None:
        """Ask the ranks to save and stop; they are killed after a grace period. `hurry`: nobody wants their work."""
        ...

    def pause(self) -> None:
        """Suspend the ranks in place."""
        ...

    def go_on(self) -> None:
        """Let suspended ranks go on."""
        ...

    def throttle(self, part: float) -> bool:
        """Let the ranks compute for a part of the time; False if that could not be said."""
        ...

    def set_limit(self, limit_s: float | None) -> None:
        """Hold the attempt to another time limit, counted over all attempts. `OSError` if it cannot be told."""
        ...


class Over(NamedTuple):
    """An attempt has ended."""

    handle: Handle
    outcome: Outcome


class Report(NamedTuple):
    """What a job has told of itself, and how far its file has been read."""

    lines: Sequence[Mapping[str, Any]]
    read_bytes: int


class Site(Protocol):
    """Where attempts run. One thread calls it; only `wake` may be called from any."""

    def start(self, directory: Path, launch: Mapping[str, Any]) -> Handle:
        """Start an attempt. `OSError` where the machine cannot."""
        ...

    def find(self, directory: Path, token: str) -> Handle | Outcome | None:
        """An attempt of an earlier scheduler: it lives, it has ended, or it never began and never will."""
        ...

    def is_given_up(self, directory: Path) -> bool:
        """Whether an attempt was told that nobody wants its work any more: its job was cancelled."""
        ...

    def reports(self, folder: Path, read_bytes: int) -> Report:
        """What a job has reported since it was read last."""
        ...

    def wait(self, seconds: float) -> Sequence[Over]:
        """The attempts that have ended; waits for one, for this long at most."""
        ...

    def wake(self) -> None:
        """Make `wait` return now."""
        ...
