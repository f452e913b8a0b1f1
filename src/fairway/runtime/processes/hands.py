"""The hands of a scheduler on one machine of many: they start, signal and find keepers there, and look at its GPUs.

The scheduler is on another machine. What it says comes as *verbs*, which may be said twice: all of them have the same
effect as once. What happens here is told as *news*. An end of an attempt is told again and again until the scheduler
has said that it knows. Nothing here knows how messages travel.

One thread does everything that changes something. Another one looks at GPUs, since a driver may not answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any

import fairway
from fairway.core.batch import Split
from fairway.core.errors import FairwayError
from fairway.runtime.processes import containment, keeper, local
from fairway.runtime.processes.containment import TOKEN, kill_strays
from fairway.runtime.processes.environment import free_port
from fairway.runtime.processes.host_size import this_machine
from fairway.runtime.processes.local import NODE, LocalSite, Running
from fairway.runtime.processes.machine import Machine, found_machine
from fairway.runtime.processes.movable_memory import MovableMemory, saver_folder
from fairway.runtime.processes.site import MemoryPlace, Moment, Outcome, Over, Sight

LOOK_EVERY_S = 2.0
"""How often GPUs and processes are looked at."""
SILENT_S = 15.0
"""A scheduler that was not heard for this long may be replaced by another one."""
_MOVES_S = 0.02
_GET_ADDRESS = 0x8915
"""The request (SIOCGIFADDR) for the address of a network interface."""


class Hands:
    """The hands on this machine, which the cluster calls `name` and reaches at `address`.

    `root` is the directory that all machines share, with the folders of jobs. `gpus` is as for `found_machine`, and
    `environment` says which GPUs are visible. `changed` is called, by any thread, when there is news.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        gpus: str,
        address: str = "127.0.0.1",
        *,
        environment: Mapping[str, str] = os.environ,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.version = 0
        self._address = address
        self._root = root
        self._changed = changed
        self._machine = found_machine(gpus, environment)
        scratch = _scratch(root, name)
        self._containment = containment.found(scratch)
        self._site = LocalSite(
            self._containment,
            _movable_memory(self._machine, scratch),
            nvml=self._machine.nvml,
            devices=self._machine.devices,
            executors=root / "executors",
            nobodys_children=True,
        )
        self._closed = False
        self._owner, self._heard_s = "", -SILENT_S
        self._running: dict[str, Running] = {}
        self._over: dict[str, Outcome] = {}
        self._moving: set[str] = set()
        self._seen: dict[str, Any] = {"blocked": {}, "sights": {}, "memory": {}}
        self._inbox: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        for work in (self._work, self._look):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    # --- verbs -------------------------------------------------------------------------------------------------------

    def call(self, verb: str, *about: Any) -> Future[Any]:
        """Say a verb. Any thread may call this. The result is plain data."""
        done: Future[Any] = Future()
        self._inbox.append((done, lambda: _VERBS[verb](self, *about)))
        self._site.wake()
        return done

    def hello(self, owner: str, shared: str, text: str) -> dict[str, Any]:
        """A scheduler introduces itself. Returns what there is to know about this machine.

        It has left `text` in the file `shared`, if this machine sees the same directory as it does.
        """
        if other := self.other_owner(owner):
            return {"taken": other}
        self._owner, self._heard_s = owner, time.monotonic()
        try:
            problem = "" if Path(shared).read_text(encoding="ascii") == text else f"{shared} has another text there"
        except (OSError, ValueError) as error:
            problem = f"{shared} cannot be read there ({getattr(error, 'strerror', None) or error})"
        cluster, machine, size = self._machine.cluster, self._machine, this_machine()
        kinds = [cluster.types[kind] for kind in cluster.node_type]
        return {
            "nodes": [[node.gpu_type, node.gpus] for node in cluster.nodes],
            "types": [[kind.name, kind.memory_bytes, kind.price_per_h, kind.speed] for kind in kinds],
            "devices": None if machine.devices is None else list(machine.devices),
            "left_out": list(machine.left_out),
            "not_shared": problem,
            "version": fairway.__version__,
            "python": platform.python_version(),
            "host": socket.gethostname(),
            "interface": interface_of(self._address),
            "date_s": time.time(),
            "nice": os.getpriority(os.PRIO_PROCESS, 0) if os.geteuid() else 0,
            "containment": self._containment.words(),
            "kept": self._containment.kept(),
            "user": os.geteuid(),
            "token": os.environ.get("RAY_AUTH_MODE") == "token",
            "cpus": size.cpus,
            "memory_bytes": size.memory_bytes,
        }

    def other_owner(self, owner: str) -> str:
        """The scheduler that these hands work for, if it is another one and was heard lately. Any thread may ask."""
        lately = time.monotonic() - self._heard_s < SILENT_S
        return self._owner if lately and owner != self._owner else ""

    def fence(self, tokens: Collection[str]) -> int:
        """End all attempts of this machine except those with these tokens. Returns how many there were.

        They are attempts that the scheduler had given up. Nothing starts here before this has been done.
        """
        known, ended = set(tokens), 0
        for pid, token, directory in self._keepers():
            if token not in known:
                with suppress(OSError):
                    (directory / "given-up").touch(mode=0o600)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                kill_strays(directory, token)
                ended += 1
        return ended

    def port(self) -> int:
        """A port on which ranks can meet here."""
        return free_port()

    def start(self, directory: str, launch: Mapping[str, Any]) -> dict[str, Any]:
        """Start an attempt, or a part of one. `OSError` if the machine cannot."""
        path = Path(directory)
        if directory in self._running or directory in self._over or (path / "keeper.json").exists():
            return self.find(directory, str(launch["token"]))
        self._running[directory] = self._site.begin(path, launch)
        return {"runs": True}

    def find(self, directory: str, token: str) -> dict[str, Any]:
        """What has become of an attempt: it runs, it is over (as news tell), or it never began and never will."""
        if directory not in self._running and directory not in self._over:
            found = self._site.find(Path(directory), token)
            if found is None:
                return {"runs": False}
            if isinstance(found, Running):
                self._running[directory] = found
                self._moving.add(directory)
            else:
                self._end(directory, found)
        return {"runs": True, **self._about(directory)}

    def tell(self, directory: str, word: str, *about: Any) -> bool | None:
        """Say a word to an attempt: a verb of its handle. False if that could not be written.

        None if these hands do not know the attempt: it is over, or they have not been asked to find it yet.
        """
        running = self._running.get(directory)
        if running is None:
            return None
        if word in ("move_out", "go_on"):
            self._moving.add(directory)
        answer = _WORDS[word](running, *about)
        return answer is not False

    def _about(self, directory: str) -> dict[str, Any]:
        running = self._running.get(directory)
        if running is None:
            return {}
        return {"stopping": running.stopping, "throttled": running.throttled, "memory": list(running.memory)}

    def _keepers(self) -> list[tuple[int, str, Path]]:
        """The keepers on this machine whose attempts are in our directory: process, token and directory of each."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if len(words) < 3 or keeper.NOBODYS_CHILD.encode() not in words:
                    continue
                told = dict(one.split(b"=", 1) for one in (entry / "environ").read_bytes().split(b"\0") if b"=" in one)
            except (OSError, ValueError):
                continue
            directory = Path(os.fsdecode(words[-2]))
            ours = directory.is_relative_to(self._root) and told.get(NODE.encode()) == self.name.encode()
            if ours and keeper.started_at(int(entry.name)) >= 0:
                found.append((int(entry.name), told.get(TOKEN.encode(), b"").decode(), directory))
        return found

    # --- news --------------------------------------------------------------------------------------------------------

    def news(self, owner: str, known: Collection[str]) -> dict[str, Any]:
        """What the scheduler should know now. Of the ends in `known` it knows already. Any thread may call this."""
        if owner != self._owner:
            return {"taken": self._owner}
        self._heard_s = time.monotonic()
        for directory in known:
            self._over.pop(directory, None)
        moving = {one: self._about(one) for one in list(self._running)}
        over = {directory: outcome_plain(outcome) for directory, outcome in list(self._over.items())}
        loads = {str(gpu): list(load) for gpu, load in self._site.gpu_loads().items()}
        return {"version": self.version, "over": over, "about": moving, **self._seen, "loads": loads}

    def _tell(self) -> None:
        self.version += 1
        self._changed()

    # --- the two threads ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the machine alone. What runs there goes on."""
        self._closed = True
        self._site.wake()

    def _work(self) -> None:
        while not self._closed:
            while self._inbox:
                done, verb = self._inbox.popleft()
                try:
                    done.set_result(verb())
                except Exception as error:
                    done.set_exception(error)
            for over in self._site.wait(_MOVES_S if self._moving else 1.0):
                self._ended(over)
            self._look_at_moves()

    def _ended(self, over: Over) -> None:
        running = over.handle
        assert isinstance(running, Running)
        self._end(str(running.directory), over.outcome)

    def _end(self, directory: str, outcome: Outcome) -> None:
        self._running.pop(directory, None)
        self._moving.discard(directory)
        self._over[directory] = outcome
        self._tell()

    def _look_at_moves(self) -> None:
        """News of memory that moves is told when it has arrived."""
        for directory in list(self._moving):
            place = self._running[directory].memory.place if directory in self._running else "gpu"
            if place in ("gpu", "host"):
                self._moving.discard(directory)
                self._seen = {**self._seen, "memory": self._gpu_memory()}
                self._tell()

    def _gpu_memory(self) -> dict[str, Any]:
        count = 0 if self._machine.devices is None else len(self._machine.devices)
        return {str(gpu): self._site.gpu_memory(gpu) for gpu in range(count)}

    def _look(self) -> None:
        while not self._closed:
            with suppress(Exception):
                blocked = {str(gpu): why for gpu, why in self._site.blocked().items()}
                sights: dict[str, Sight] = {}
                for directory, running in list(self._running.items()):
                    sights[directory] = self._site.sight(running)
                news = blocked != self._seen["blocked"]
                self._seen = {**self._seen, "blocked": blocked, "sights": sights, "memory": self._gpu_memory()}
                if news:
                    self._tell()
            time.sleep(LOOK_EVERY_S)


_VERBS: dict[str, Callable[..., Any]] = {
    "hello": Hands.hello,
    "fence": Hands.fence,
    "port": Hands.port,
    "start": Hands.start,
    "find": Hands.find,
    "tell": Hands.tell,
}


def _want(running: Running, local_batch: int, accumulation: int, gpus: int) -> bool:
    return running.want(Split(local_batch, accumulation), gpus)


def _gang(running: Running) -> None:
    (running.directory / "gang").touch(mode=0o600)


_WORDS: dict[str, Callable[..., Any]] = {
    "stop": lambda running, hurry: running.stop(hurry=hurry),
    "pause": Running.pause,
    "go_on": lambda running, keep: running.go_on(keep=keep),
    "throttle": Running.throttle,
    "move_out": lambda running, most, held, everything: running.move_out(most, held_bytes=held, everything=everything),
    "get_ready": Running.get_ready,
    "tell_plan": Running.tell_plan,
    "want": _want,
    "limit": Running.set_limit,
    "gang": _gang,
}


def outcome_plain(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain data."""
    return {**outcome._asdict(), "codes": list(outcome.codes), "ended": list(outcome.ended) if outcome.ended else None}


def _scratch(root: Path, name: str) -> Path:
    """A private directory on this machine for what cannot be shared."""
    path = local.scratch_folder()
    local.make_folder(path)
    path /= hashlib.sha256(os.fsencode(root / name)).hexdigest()[:12]
    local.make_folder(path)
    return path


def _movable_memory(machine: Machine, folder: Path) -> MovableMemory | None:
    nvml, devices = machine.nvml, machine.devices
    if nvml is None or devices is None:
        return None
    return MovableMemory(folder, lambda gpu: nvml.memory(devices[gpu]), saver_folder())


def interface_of(address: str) -> str:
    """The network interface of this machine that has an address; empty if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                told = ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(told[20:24]) == address:
                    return name
    return ""


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return {
        os.fsdecode(name): os.fsdecode(value) for name, _, value in (word.partition(b"=") for word in words) if name
    }


def memory_place(told: Any) -> MemoryPlace:
    """Where memory is, from plain data."""
    place, size, ways, seconds, problem = told
    return MemoryPlace(place, int(size), tuple(ways), float(seconds), str(problem))


def outcome_of(told: Mapping[str, Any]) -> Outcome:
    """An outcome, from plain data."""
    ended = None if told["ended"] is None else Moment(*told["ended"])
    return Outcome(**{**told, "codes": tuple(told["codes"]), "ended": ended})


class RemoteHands:
    """Hands that are called over a network, with an event loop of their own.

    A long question for news ends when there is some, or after a while.
    """

    def __init__(self, name: str, address: str) -> None:
        self._name, self._address = name, address
        self._news: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hands: Hands | None = None
        self._made_for: tuple[str, str] = ("", "")

    async def hello(self, owner: str, root: str, gpus: str, shared: str, text: str) -> dict[str, Any]:
        """A scheduler introduces itself. Hands that were made for another directory or other GPUs are made again."""
        try:
            if self._hands is not None and (other := self._hands.other_owner(owner)):
                return {"taken": other}
            if self._hands is None or self._made_for != (root, gpus):
                await asyncio.to_thread(self._make, root, gpus)
            assert self._hands is not None
            return dict(await asyncio.wrap_future(self._hands.call("hello", owner, shared, text)))
        except (OSError, FairwayError) as error:
            return {"problem": str(error)}

    def _make(self, root: str, gpus: str) -> None:
        if self._hands is not None:
            self._hands.close()
            self._hands = None
        visible = environment_of(int(os.environ.get("RAY_RAYLET_PID") or os.getppid()))
        self._hands = Hands(self._name, Path(root), gpus, self._address, environment=visible, changed=self._wake)
        self._made_for = root, gpus

    async def call(self, verb: str, about: Sequence[Any]) -> dict[str, Any]:
        """Say a verb. What this machine cannot do is an answer, not an exception."""
        if self._hands is None:
            return {"failed": "its hands are new"}
        try:
            return {"value": await asyncio.wrap_future(self._hands.call(verb, *about))}
        except OSError as error:
            return {"error": str(error)}

    async def news(self, owner: str, known: Sequence[str], after: int, seconds: float) -> dict[str, Any]:
        """What is new since the version `after`; waits for it, at most this long."""
        if self._hands is None:
            return {"taken": "its hands are new"}
        if self._news is None:
            self._news, self._loop = asyncio.Event(), asyncio.get_running_loop()
        told = self._hands.news(owner, known)
        if told.get("version") == after:
            self._news.clear()
            if self._hands.version == after:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._news.wait(), seconds)
            told = self._hands.news(owner, known)
        return told

    def _wake(self) -> None:
        loop, news = self._loop, self._news
        if loop is not None and news is not None:
            loop.call_soon_threadsafe(news.set)
