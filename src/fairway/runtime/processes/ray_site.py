"""Many machines as a site, with Ray underneath. This speaks to a bridge process (`ray_bridge`), never to Ray itself.

Nothing here waits for another machine. What is wanted of an attempt is remembered, and said again until its machine has
answered: the bridge, the hands of a machine, or Ray as a whole may be away for a while. Attempts go on meanwhile.

A machine is *unreachable* while its hands do not answer. It is *lost* when Ray has given it up and its keepers show no
sign of life in the shared directory. Then its attempts are given up: a file says so to keepers that should still live,
and before the machine is used again, its hands end what is left there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fairway
from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.runtime.processes import keeper, local
from fairway.runtime.processes.bridge_link import BridgeLink, start_ray_bridge
from fairway.runtime.processes.environment import ASKS_PORT, with_port
from fairway.runtime.processes.hands import memory_place, outcome_of
from fairway.runtime.processes.host_size import HostSize
from fairway.runtime.processes.local import NOBODY, JobFolders, lost_outcome, make_folder, make_job_folder
from fairway.runtime.processes.parts import joined
from fairway.runtime.processes.remote_attempt import RemoteAttempt, RemotePart, parts_of
from fairway.runtime.processes.remote_machines import NOTHING_KNOWN, ClusterLayout, Known, RemoteMachine
from fairway.runtime.processes.site import (
    REFUSED,
    GpuLoad,
    GpuMemory,
    Member,
    NodeChange,
    NodesJoined,
    NodeStatus,
    Outcome,
    Over,
    Sight,
)
from fairway.runtime.processes.startable import Startable, StartCheck

SIGN_S = 13.0
"""A machine that Ray has given up is lost if its keepers have shown no sign of life for this long."""
SILENT_S = 2.0
"""How long hands may be silent before their machine counts as unreachable."""
START_S = 15.0
"""How long a machine has to start an attempt, if it can be reached."""
CONNECT_S, HELLO_S = 15.0, 30.0
"""How long to look for Ray, and for its machines, when a scheduler starts."""
MOST_AHEAD_S = 30.0
"""How far the clocks of machines may be apart."""
_CHECK_S = 0.5
_AGAIN_S = 1.0
"""How often what a machine has not answered is said again, and how soon another bridge is started."""
_BRIDGE_S = 15.0
"""A bridge that was not heard for this long is replaced."""


class RaySite(JobFolders):
    """The machines of a Ray cluster. `root` is the directory that all of them share; `gpus` is as for `found_machine`,
    for each of them. `owner` names this scheduler, and `known` the nodes that it had before. What the bridge writes
    goes to `log`; `bridge` starts it.
    """

    def __init__(
        self,
        address: str,
        root: Path,
        gpus: str,
        owner: str,
        known: Known = NOTHING_KNOWN,
        *,
        log: Path,
        bridge: Callable[[str, Mapping[str, Any], Path], BridgeLink] = start_ray_bridge,
    ) -> None:
        if bridge is start_ray_bridge and importlib.util.find_spec("ray") is None:
            raise InputError("--engine ray needs Ray: pip install 'fairway[ray]'")
        self._address, self._root, self._gpus, self._owner = address, root, gpus, owner
        self._wish = known
        self._bridge, self._log = bridge, log
        self._machines: dict[str, RemoteMachine] = {}
        self._start_check = StartCheck()
        self._attempts: dict[str, RemoteAttempt] = {}
        self._parts: dict[str, RemotePart] = {}
        self._calls: dict[int, tuple[str, Callable[[Mapping[str, Any]], None]]] = {}
        self._next_call = 0
        self._begun = False
        self._news: list[Over | NodeChange | NodesJoined] = []
        self._link: BridgeLink | None = None
        self._heard_s = self._bridge_s = 0.0
        self._alive: set[str] | None = None
        self._twice: list[str] = []
        self.trouble = ""
        self._lines: deque[str] = deque()
        self._left_out: dict[str, str] = {}
        self._check_s = 0.0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._shared = self._written_file()
        try:
            self._connect()
            self.cluster, self.devices = self._first_cluster()
        except BaseException:
            self.close()
            raise

    # --- the start ---------------------------------------------------------------------------------------------------

    def _written_file(self) -> tuple[Path, str]:
        """Leave a file for the other machines: they see the same directory if they can read it."""
        make_folder(self._root)
        path, text = self._root / "shared-directory", secrets.token_hex(16)
        keeper.write_over(path, text)
        return path, json.dumps(text)

    def _connect(self) -> None:
        """Find Ray and its machines, or say why that is not possible."""
        deadline_s = time.monotonic() + CONNECT_S
        self._start_bridge()
        while self._alive is None:
            self._listen(0.1)
            if self.trouble or time.monotonic() > deadline_s:
                raise InputError(f"--engine ray:{self._address}: {self.trouble or 'Ray does not answer'}")
        deadline_s = time.monotonic() + HELLO_S
        while any(name not in self._machines for name in self._alive) and time.monotonic() < deadline_s:
            self._listen(0.1)
        if self._twice:
            raise InputError(f"two nodes of Ray are called {self._twice[0]!r}; start them with `--node-name`")
        for machine in self._machines.values():
            problem = self._problem(machine)
            if problem:
                raise InputError(f"node {machine.name}: {problem}")
        for name in sorted(self._alive - self._machines.keys()):
            self._lines.append(f"node {name} does not answer")

    def _problem(self, machine: RemoteMachine) -> str:
        """Why a machine that has said hello cannot be used."""
        hello = machine.hello
        if "taken" in hello:
            return f"another scheduler uses this Ray cluster: {hello['taken']}"
        if "problem" in hello:
            # It is only left out.
            return ""
        if hello["version"] != fairway.__version__:
            return f"it has Fairway {hello['version']}, and {fairway.__version__} runs here"
        if hello["user"] != os.geteuid():
            return f"Ray runs there as user {hello['user']}, and the scheduler here as user {os.geteuid()}"
        if hello["not_shared"]:
            return f"{self._root} is not shared with it: {hello['not_shared']}; `--jobs DIR` names a directory that is"
        if abs(hello["ahead_s"]) > MOST_AHEAD_S:
            way = "ahead of" if hello["ahead_s"] > 0 else "behind"
            return f"its clock is {abs(hello['ahead_s']):.0f} s {way} this machine's; set it first"
        if not hello["token"] and not machine.address.startswith("127."):
            return "its Ray lets everybody in who reaches it: start Ray with RAY_AUTH_MODE=token, or on 127.0.0.1"
        return ""

    def _first_cluster(self) -> tuple[Cluster, Sequence[str] | None]:
        """Known nodes first, whether they are there or not; then those that are new, by name."""
        virtual = self._wish.devices is None if self._wish.nodes else not self._some_real()
        cluster = ClusterLayout(virtual)
        for kind, gpus, name in self._wish.nodes:
            cluster.add_known(kind, gpus, name)
        if self._wish.devices is not None:
            cluster.devices = list(self._wish.devices)
        for name in sorted(self._machines):
            self._lay_out(cluster, self._machines[name])
        if not cluster.nodes:
            raise InputError(f"--engine ray:{self._address}: no node of Ray has GPUs that can be used")
        for name in {name for _, _, name in cluster.machines} - self._machines.keys():
            self._machines[name] = RemoteMachine(name, why="it has not been seen yet", dead=True)
        self._number(cluster)
        return cluster.made(f"ray:{self._address}"), None if virtual else cluster.devices

    def _some_real(self) -> bool:
        return any(machine.hello.get("devices") is not None for machine in self._machines.values())

    def _lay_out(self, cluster: ClusterLayout, machine: RemoteMachine) -> str:
        """Add the nodes of a machine, or find them among the known ones. Returns why it is left out, if it is."""
        why = cluster.fit(machine)
        if why:
            self._leave_out(machine.name, why)
            del self._machines[machine.name]
        return why

    def _leave_out(self, name: str, why: str) -> None:
        if self._left_out.get(name) != why:
            self._left_out[name] = why
            self._lines.append(f"node {name} is not used: {why}")

    def _number(self, cluster: ClusterLayout) -> None:
        first = 0
        nodes: dict[str, list[int]] = {}
        gpus: dict[str, list[int]] = {}
        for number, (node, (_, count, name)) in enumerate(zip(cluster.nodes, cluster.machines, strict=True)):
            assert node.gpus == count
            nodes.setdefault(name, []).append(number)
            gpus.setdefault(name, []).extend(range(first, first + count))
            first += count
        for name, machine in self._machines.items():
            machine.nodes, machine.gpus = nodes[name], gpus[name]
        self._layout = cluster

    # --- what a scheduler asks for -----------------------------------------------------------------------------------

    def member(self, node: int) -> Member:
        """A machine of the site."""
        machine = self._machines[self._layout.machines[node][2]]
        return Member(machine.name, machine.address or "127.0.0.1", machine.interface)

    def largest(self) -> HostSize | None:
        """The most CPUs and memory that a machine has; None as long as some have not said. Any thread may call this."""
        told = [machine.hello for machine in list(self._machines.values())]
        if not told or not all("memory_bytes" in hello for hello in told):
            return None
        cpus, memory_bytes = (max(int(hello[what]) for hello in told) for what in ("cpus", "memory_bytes"))
        return HostSize(cpus, memory_bytes, len(told))

    def start_problem(self, wish: Startable) -> str:
        """What is wrong with the directory. Only the machine where the job will run knows its programs."""
        return self._start_check.problem(wish._replace(program="", path=""))

    def start(self, directory: Path, launch: Mapping[str, Any]) -> RemoteAttempt:
        """Have an attempt started. If its machines cannot, it is over soon. `OSError` if its folder cannot be made."""
        make_job_folder(directory.parent, launch.get("account", ""))
        make_folder(directory)
        keeper.write_over(directory / "launch.json", launch)
        kept = {"token": launch["token"], ASKS_PORT: launch.get(ASKS_PORT, False)}
        parts = [
            RemotePart(self._machine_of(told["node"]), where, launch["token"], {**told, **kept})
            for where, told in parts_of(directory, launch)
        ]
        for part in parts:
            if part.directory != directory:
                make_folder(part.directory)
        attempt = self._keep(directory, parts)
        for part in parts:
            self._push(part)
        return attempt

    def find(self, directory: Path, token: str) -> RemoteAttempt | Outcome | None:
        """An attempt of an earlier scheduler. If it has not ended, its machines are asked about it."""
        try:
            launch = json.loads(keeper.read_own(directory / "launch.json"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            launch = {}
        places = parts_of(directory, launch)
        ended = [local.outcome_of(where) for where, _ in places]
        known = [one for one in ended if one is not None]
        if len(known) == len(places):
            return joined([local.with_words(one, where) for one, (where, _) in zip(known, places, strict=True)])
        parts = [
            RemotePart(self._machine_of(told.get("node", "")), where, token, None, "finding") for where, told in places
        ]
        for part in parts:
            if part.machine not in self._machines:
                self._part_over(part, lost_outcome(part.directory))
        if all(part.outcome is not None for part in parts):
            return joined([part.outcome for part in parts if part.outcome is not None])
        attempt = self._keep(directory, parts)
        for part in parts:
            self._push(part)
        return attempt

    def is_given_up(self, directory: Path) -> bool:
        """Whether an attempt was told that its work is not needed any more."""
        return any(local.is_given_up(one) for one in (directory, *directory.glob("node-*")))

    def gpu_memory(self, gpu: int) -> GpuMemory | None:
        """The memory of a GPU, as its machine last said; None if it does not say."""
        for machine in self._machines.values():
            if gpu in machine.gpus:
                told = machine.seen.get("memory", {}).get(str(machine.gpus.index(gpu)))
                return None if told is None else GpuMemory(*told)
        return None

    def blocked(self) -> Mapping[int, str]:
        """The GPUs that cannot be used now, as their machines last said."""
        found: dict[int, str] = {}
        for machine in list(self._machines.values()):
            if not machine.reserved:
                found |= dict.fromkeys(machine.gpus, "tasks of Ray have GPUs of its node")
            found |= {machine.gpus[int(gpu)]: why for gpu, why in machine.seen.get("blocked", {}).items()}
        return found

    def gpu_loads(self) -> Mapping[int, GpuLoad]:
        """How busy and how full GPUs were, as those machines last said that answer now. Any thread may call this."""
        found: dict[int, GpuLoad] = {}
        for machine in list(self._machines.values()):
            told = machine.seen.get("loads", {}) if machine.ready else {}
            found |= {machine.gpus[int(gpu)]: GpuLoad(*load) for gpu, load in told.items()}
        return found

    def lines(self) -> Sequence[str]:
        """What an operator should read, since this was last asked. Any thread may call this."""
        found: list[str] = []
        while self._lines:
            found.append(self._lines.popleft())
        return found

    def sight(self, handle: RemoteAttempt) -> Sight:
        """What was last seen of an attempt."""
        seen = [self._machines[one.machine].seen.get("sights", {}).get(str(one.directory)) for one in handle.parts]
        told = [Sight(*one) for one in seen if one is not None]
        if len(told) < len(handle.parts):
            return Sight()
        percents = [one.gpu_percent for one in told if one.gpu_percent is not None]
        cpu_s = sum(one.cpu_s or 0.0 for one in told)
        return Sight(cpu_s, max(percents) if percents else None, max(one.gpu_bytes for one in told))

    def wait(self, seconds: float) -> Sequence[Over | NodeChange | NodesJoined]:
        """What has happened. Waits for something, at most this many seconds."""
        if not self._begun:
            # Only now all attempts that may still run are known.
            self._begun = True
            for machine in list(self._machines.values()):
                machine.since_s = time.monotonic()
                machine.greeted = bool(machine.hello)
                if machine.greeted:
                    self._fence(machine)
        if not self._news:
            self._listen(min(seconds, _CHECK_S))
        now_s = time.monotonic()
        if now_s >= self._check_s:
            self._check_s = now_s + _CHECK_S
            self._check(now_s)
        news, self._news = self._news, []
        return news

    def wake(self) -> None:
        """Make `wait` return now. Any thread may call this."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"!")

    def contained(self) -> str:
        """How attempts are contained, in words."""
        words = {str(machine.hello.get("containment", "")) for machine in self._machines.values() if machine.hello}
        return "; ".join(sorted(words)) or "unknown"

    def limits_kept(self) -> list[str]:
        """The limits of jobs that all machines keep."""
        kept = [set(machine.hello.get("kept", ())) for machine in self._machines.values() if machine.hello]
        return sorted(set.intersection(*kept)) if kept else []

    def close(self) -> None:
        """End the bridge. Attempts and hands go on."""
        self._drop_bridge()
        for fd in (self._wake_read, self._wake_write):
            with suppress(OSError):
                os.close(fd)

    # --- attempts ----------------------------------------------------------------------------------------------------

    def _machine_of(self, node: str) -> str:
        """The machine that has a node, by the node's name."""
        for one, (_, _, name) in zip(self._layout.nodes, self._layout.machines, strict=True):
            if one.name == node:
                return name
        return node

    def _keep(self, directory: Path, parts: Sequence[RemotePart]) -> RemoteAttempt:
        attempt = RemoteAttempt(parts, self._push)
        self._attempts[str(directory)] = attempt
        for part in parts:
            part.since_s = time.monotonic()
            if part.outcome is None:
                self._parts[str(part.directory)] = part
        return attempt

    def _ask_port(self, attempt: RemoteAttempt) -> None:
        """Have the ranks meet at a port that is free on the machine of rank 0, then start all parts."""

        first = attempt.parts[0]

        def start(answer: Mapping[str, Any]) -> None:
            first.asked_s = None
            for part in attempt.parts if "value" in answer else ():
                if part.launch is not None and part.launch.get(ASKS_PORT):
                    part.launch = with_port(part.launch, int(answer["value"]))
                self._push(part)

        if first.asked_s is None and self._is_ready(first.machine):
            first.asked_s = time.monotonic()
            self._call(first.machine, "port", (), start)

    def _is_ready(self, name: str) -> bool:
        machine = self._machines.get(name)
        return machine is not None and machine.ready and self._link is not None

    def _push(self, part: RemotePart) -> None:
        """Say the next thing to the machine of a part, if nothing is being said."""
        if part.state == "over" or part.asked_s is not None or not self._is_ready(part.machine):
            return
        where = str(part.directory)
        if part.state == "starting":
            assert part.launch is not None
            if part.launch.get(ASKS_PORT):
                self._ask_port(self._attempts[_attempt_of(part)])
                return
            self._ask(part, "start", (where, dict(part.launch)), lambda answer: self._began(part, answer))
        elif part.state == "finding":
            self._ask(part, "find", (where, part.token), lambda answer: self._began(part, answer))
        elif part.words:
            kind = next(iter(part.words))
            word = part.words[kind]

            def said(answer: Mapping[str, Any]) -> None:
                if answer.get("value", False) is None:
                    # Its hands are new.
                    part.state = "finding"
                elif answer.get("value") and part.words.get(kind) is word:
                    del part.words[kind]

            self._ask(part, "tell", (where, *word), said)

    def _ask(
        self, part: RemotePart, verb: str, about: Sequence[Any], then: Callable[[Mapping[str, Any]], None]
    ) -> None:
        def answered(answer: Mapping[str, Any]) -> None:
            part.asked_s = None
            then(answer)
            if answer.get("value", False) is not False:
                # Otherwise it is tried again later.
                self._push(part)
            if self._machines[part.machine].status != "up":
                self._look_whether_up(self._machines[part.machine])

        part.asked_s = time.monotonic()
        self._call(part.machine, verb, about, answered)

    def _began(self, part: RemotePart, answer: Mapping[str, Any]) -> None:
        """A machine has started a part of an attempt, has found it, or says why not."""
        if part.state == "over" or "failed" in answer:
            return
        if "error" in answer:
            if part.state == "starting":
                self._part_over(
                    part, Outcome((), REFUSED, problem=f"cannot be started on {part.machine}: {answer['error']}")
                )
            return
        told = answer["value"]
        if not told["runs"]:
            self._part_over(part, Outcome((), REFUSED, problem=f"it never began on {part.machine}"))
            return
        part.state, part.launch = "runs", None
        self._note(part, told)

    def _note(self, part: RemotePart, told: Mapping[str, Any]) -> None:
        if "memory" in told:
            part.stopping |= bool(told["stopping"])
            part.memory = memory_place(told["memory"])

    def _part_over(self, part: RemotePart, outcome: Outcome) -> None:
        part.outcome, part.state, part.words = outcome, "over", {}
        self._parts.pop(str(part.directory), None)
        key = _attempt_of(part)
        attempt = self._attempts.get(key)
        if attempt is None:
            return
        ended = [one.outcome for one in attempt.parts if one.outcome is not None]
        if len(ended) == len(attempt.parts):
            del self._attempts[key]
            self._news.append(Over(attempt, joined(ended)))
        elif outcome.cause or any(outcome.codes):
            for other in attempt.parts:
                if other.outcome is None:
                    other.say("gang")
                    self._push(other)

    # --- machines ----------------------------------------------------------------------------------------------------

    def _check(self, now_s: float) -> None:
        """Look at what does not come by itself: silence, missing signs of life, starts that take too long."""
        if self._link is None:
            if now_s >= self._bridge_s:
                self._start_bridge()
        elif now_s > self._heard_s + _BRIDGE_S:
            self._drop_bridge()
        for machine in list(self._machines.values()):
            if not machine.ready and machine.status != "lost" and now_s >= machine.since_s + SILENT_S:
                self._turn(machine, "unreachable", machine.why)
            if machine.ready and machine.status != "up":
                self._look_whether_up(machine)
            if machine.greeted and not machine.ready and now_s >= machine.fenced_s + START_S:
                self._fence(machine)
            if machine.dead and machine.status != "lost" and self._alive is not None:
                self._look_for_signs(machine, now_s)
        for part in list(self._parts.values()):
            if part.asked_s is not None and now_s > part.asked_s + START_S:
                part.asked_s = None
            if part.state == "starting" and now_s > part.since_s + START_S:
                self._refuse(part)
            elif part.asked_s is None:
                self._push(part)

    def _refuse(self, part: RemotePart) -> None:
        """A part was not started in time. It never will be, unless it has begun and its machine could not say so."""
        part.since_s = time.monotonic()
        with suppress(OSError):
            if keeper.write_new(part.directory / "keeper.json", NOBODY):
                self._part_over(part, Outcome((), REFUSED, problem=f"node {part.machine} does not answer"))
            else:
                part.state = "finding"

    def _look_for_signs(self, machine: RemoteMachine, now_s: float) -> None:
        """Ray has given up a machine: it is lost if its keepers show no sign of life either."""
        parts = self._on(machine)
        for part in parts:
            try:
                sign = (part.directory / "sign").read_bytes()
            except OSError:
                sign = b""
            if machine.signs.get(part.directory, (None, 0.0))[0] != sign:
                machine.signs[part.directory] = sign, now_s
        seen_s = [machine.signs[part.directory][1] for part in parts]
        if not seen_s or now_s >= max(seen_s) + SIGN_S:
            self._lose(machine)

    def _lose(self, machine: RemoteMachine) -> None:
        for part in self._on(machine):
            with suppress(OSError):
                (part.directory / "given-up").touch(mode=0o600)
        self._turn(machine, "lost", machine.why or "Ray has lost it")
        for part in self._on(machine):
            self._part_over(part, lost_outcome(part.directory)._replace(problem=f"node {machine.name} is lost"))
        machine.signs.clear()

    def _on(self, machine: RemoteMachine) -> list[RemotePart]:
        return [part for part in list(self._parts.values()) if part.machine == machine.name]

    def _turn(self, machine: RemoteMachine, status: NodeStatus, why: str = "") -> None:
        """A machine is in another condition, or is told for the first time."""
        if machine.status == status and machine.told:
            return
        if machine.told or status != "up":
            words = {"up": "is up", "unreachable": "does not answer", "lost": "is lost"}[status]
            self._lines.append(f"node {machine.name} {words}{f': {why}' if why else ''}")
        machine.status, machine.why, machine.told = status, why, True
        self._news += [NodeChange(node, status, why) for node in machine.nodes]

    def _said_hello(self, message: Mapping[str, Any]) -> None:
        name, hello = message["machine"], message["hello"]
        machine = self._machines.get(name) or RemoteMachine(name)
        machine.hello, machine.address = hello, message["address"]
        machine.interface = hello.get("interface", "")
        machine.reserved = bool(message["reserved"])
        machine.rack = message["rack"]
        if not self._begun:
            self._machines[name] = machine
            return
        why = self._problem(machine) or (self._join(machine) if not machine.nodes else self._layout.fit(machine))
        if why:
            self._leave_out(name, why)
            machine.why = why
            return
        machine.greeted = True
        self._fence(machine)

    def _join(self, machine: RemoteMachine) -> str:
        """Give a machine that nobody knew its place in the cluster."""
        why = self._layout.fit(machine)
        if not why:
            self._machines[machine.name] = machine
            self._number(self._layout)
            self.cluster = self._layout.made(f"ray:{self._address}")
            self.devices = None if self._layout.virtual else list(self._layout.devices)
            self._news.append(NodesJoined(self.cluster, self.devices))
        return why

    def _fence(self, machine: RemoteMachine) -> None:
        """Have everything ended on a machine that we do not know of. Then it may be used."""

        def fenced(answer: Mapping[str, Any]) -> None:
            if "value" not in answer:
                # It is asked again.
                return
            machine.ready, machine.dead, machine.why = True, False, ""
            machine.signs.clear()
            for part in self._on(machine):
                if part.state == "runs":
                    part.state = "finding"
                part.asked_s = None
                self._push(part)
            self._look_whether_up(machine)

        machine.fenced_s = time.monotonic()
        self._call(machine.name, "fence", ([part.token for part in self._on(machine)],), fenced)

    def _look_whether_up(self, machine: RemoteMachine) -> None:
        """A machine is up again once its attempts have heard all that they were to be told meanwhile: one that was to
        stand still may be on GPUs that now belong to another."""
        if machine.ready and not any(part.state == "finding" or part.words for part in self._on(machine)):
            self._turn(machine, "up")

    def _fell_silent(self, name: str, why: str) -> None:
        machine = self._machines.get(name)
        if machine is not None:
            machine.greeted = False
            if machine.ready:
                machine.ready, machine.since_s, machine.why = False, time.monotonic(), why
        for number, (other, _) in list(self._calls.items()):
            if other == name:
                self._answer({"call": number, "failed": why})

    # --- the bridge --------------------------------------------------------------------------------------------------

    def _start_bridge(self) -> None:
        path, text = self._shared
        told = {"owner": self._owner, "root": str(self._root), "gpus": self._gpus, "shared": str(path), "text": text}
        self._link = self._bridge(self._address, told, self._log)
        self._heard_s = time.monotonic()

    def _drop_bridge(self) -> None:
        """The bridge is gone, or is not heard: what was asked through it is asked again through the next one."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._bridge_s = time.monotonic() + _AGAIN_S
        for name in list(self._machines):
            self._fell_silent(name, "the bridge to Ray is being started again")

    def _call(self, machine: str, verb: str, about: Sequence[Any], then: Callable[[Mapping[str, Any]], None]) -> None:
        self._next_call += 1
        self._calls[self._next_call] = machine, then
        if self._link is not None:
            self._link.send({"call": self._next_call, "machine": machine, "verb": verb, "about": about})

    def _answer(self, message: Mapping[str, Any]) -> None:
        found = self._calls.pop(message["call"], None)
        if found is not None:
            found[1](message)

    def _listen(self, seconds: float) -> None:
        """Take in what the bridge says; waits for something, at most this many seconds."""
        poll, link = select.poll(), self._link
        poll.register(self._wake_read, select.POLLIN)
        if link is not None:
            poll.register(link.sock, select.POLLIN | (select.POLLOUT if link.has_unsent else 0))
        for fd, _ in poll.poll(max(seconds, 0.0) * 1000.0):
            if fd == self._wake_read:
                with suppress(BlockingIOError):
                    while os.read(self._wake_read, 4096):
                        pass
            elif link is not None:
                link.flush()
                for message in link.messages():
                    self._take(message)
                if link.gone and self._link is link:
                    self._drop_bridge()

    def _take(self, message: Mapping[str, Any]) -> None:
        self._heard_s = time.monotonic()
        if "call" in message:
            self._answer(message)
        elif "hello" in message:
            self._said_hello(message)
        elif "news" in message:
            self._take_news(message["machine"], message["news"])
        elif "silent" in message:
            self._fell_silent(message["machine"], message["silent"])
        elif "alive" in message:
            self._take_alive(set(message["alive"]), message["twice"])
        elif "trouble" in message:
            self.trouble = message["trouble"]

    def _take_alive(self, alive: set[str], twice: list[str]) -> None:
        self._alive, self._twice, self.trouble = alive, twice, ""
        for name, machine in self._machines.items():
            dead = name not in alive
            if dead and not machine.dead:
                machine.signs.clear()
            machine.dead = dead

    def _take_news(self, name: str, news: Mapping[str, Any]) -> None:
        machine = self._machines.get(name)
        if machine is None:
            return
        machine.reserved = bool(news["reserved"])
        machine.seen = {kind: news.get(kind, {}) for kind in ("blocked", "sights", "memory", "loads")}
        for directory, told in news["about"].items():
            part = self._parts.get(directory)
            if part is not None and part.state == "runs":
                self._note(part, told)
        for directory, told in news["over"].items():
            part = self._parts.get(directory)
            if part is not None and part.state != "over":
                self._part_over(part, outcome_of(told))
        if news["over"] and self._link is not None:
            self._link.send({"known": {name: list(news["over"])}})


def _attempt_of(part: RemotePart) -> str:
    """The directory of the attempt that a part belongs to."""
    return str(part.directory.parent if part.directory.name.startswith("node-") else part.directory)
