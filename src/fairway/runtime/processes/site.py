"""What a scheduler needs of the place where processes run: this machine (`local`), or many on Ray (`ray_site`).

Tests have a simulated one.

An attempt is one start of a job's processes. While it lives, it is controlled by its *handle*. Everything that has to
outlive the scheduler belongs to the site: a scheduler that starts again finds every attempt there, running or ended.

The machines of a site are the nodes of its cluster, by number. The launch of an attempt on one node says which
(`node`, a name). A gang over several nodes is launched in *parts*, one for each node in the order of its ranks
(`parts`, a list of launches); each part has a keeper of its own, in a folder of its own (`directory`, which is
`attempt-N/node-K`). The logs of all ranks are in `attempt-N`. How the parts ended is joined by `parts.joined`.

The ranks of an attempt meet at a port of the first node. If the launch says `master_port`, the site chooses a port that
is free there, and starts `environment.with_port(launch, port)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from fairway.core.batch import Split
from fairway.core.cluster import Cluster
from fairway.runtime.processes.host_size import HostSize
from fairway.runtime.processes.startable import Startable


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


class GpuLoad(NamedTuple):
    """The part of the last moments in which a GPU computed (0 to 1), and its memory in use. What nobody says is None.

    It is for people who look. No decision depends on it.
    """

    utilisation: float | None = None
    memory_used_bytes: int | None = None


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


NodeStatus = Literal["up", "unreachable", "lost"]


class Member(NamedTuple):
    """A machine of a site. Ranks on other machines reach it at `address`, over its network interface `interface`."""

    name: str
    address: str = "127.0.0.1"
    interface: str = ""


class NodeChange(NamedTuple):
    """A node is up, does not answer, or is lost, since now.

    A node that does not answer may still run its attempts. A lost node does not, or what it runs is ended before the
    node is up again. The ends of attempts on a lost node come after this.
    """

    node: int
    status: NodeStatus
    why: str = ""


class NodesJoined(NamedTuple):
    """The site has more nodes. `cluster` has the known ones first, under the same numbers, and so has `devices`."""

    cluster: Cluster
    devices: Sequence[str] | None


class Sight(NamedTuple):
    """What is seen of an attempt: the CPU time of its processes so far, the highest percentage of time that any of its
    GPUs computed lately, and the most bytes that it has on a GPU. What cannot be seen is None, or 0 bytes."""

    cpu_s: float | None = None
    gpu_percent: float | None = None
    gpu_bytes: int = 0


REFUSED = "refused"
"""The cause of an attempt that the machine could not start."""
LOST = Outcome((), "lost", problem="its keeper is gone")


class Handle(Protocol):
    """A live attempt, as far as the site knows."""

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
    """Where attempts run. Only one thread may call it, except for `wake`, `blocked`, `sight`, `gpu_loads`,
    `lines`, `largest` and `start_problem`.

    No method waits for another machine.
    """

    def member(self, node: int) -> Member:
        """A machine of the site."""
        ...

    def largest(self) -> HostSize | None:
        """The most CPUs and memory that one machine has; None as long as some machines have not said."""
        ...

    def start_problem(self, wish: Startable) -> str:
        """Why a program could not be started here; "" if it could, or only another machine can say. It may wait."""
        ...

    def blocked(self) -> Mapping[int, str]:
        """The GPUs that cannot be used now, by number with the reason: foreign processes compute there, or they are out
        of order."""
        ...

    def lines(self) -> Sequence[str]:
        """What an operator should read, since this was last asked."""
        ...

    def sight(self, handle: Any) -> Sight:
        """What is seen of an attempt now."""
        ...

    def start(self, directory: Path, launch: Mapping[str, Any]) -> Handle:
        """Start an attempt. `OSError` if the machine cannot."""
        ...

    def find(self, directory: Path, token: str) -> Handle | Outcome | None:
        """An attempt of an earlier scheduler: it lives, it has ended, or it never began and never will."""
        ...

    def is_given_up(self, directory: Path) -> bool:
        """Whether an attempt was told that its work is not needed any more: its job was cancelled."""
        ...

    def reports(self, folder: Path, read_bytes: int, *, final: bool = False) -> Report:
        """What a job has reported since its file was last read. `final`: its attempt has ended."""
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

    def gpu_loads(self) -> Mapping[int, GpuLoad]:
        """How busy and how full GPUs were a few seconds ago, by number; without those of which nobody can say."""
        ...

    def wait(self, seconds: float) -> Sequence[Over | NodeChange | NodesJoined]:
        """The attempts that have ended, and nodes that have changed. Waits for something, at most this many seconds."""
        ...

    def wake(self) -> None:
        """Make `wait` return now."""
        ...
