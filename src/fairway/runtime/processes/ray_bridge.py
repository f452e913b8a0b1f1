"""The bridge to Ray: the only process that imports it. It carries messages between a scheduler and the machines.

Ray ends its drivers when its control store is away for long, and may end them at any other moment. So this is a process
of its own, which may die at any instant: the scheduler starts another one, and nothing is lost. It knows no jobs.

Messages are lines of JSON over a socket. From the scheduler:

    {"call": 7, "machine": "n1", "verb": "start", "about": [...]}     a verb for the hands of a machine
    {"known": {"n1": ["/shared/jobs/12/attempt-1", ...]}}             ends that the scheduler has heard of

To the scheduler:

    {"call": 7, "value": ...}, {"call": 7, "error": "no space left"}, {"call": 7, "failed": "it does not answer"}
    {"machine": "n1", "hello": {...}, "address": "10.0.0.2", "rack": ""}   its hands are ready; verbs may be sent
    {"machine": "n1", "news": {...}}                                       see `hands`
    {"machine": "n1", "silent": "its hands do not answer"}                 verbs reach it no more, for now
    {"alive": ["n1", "n2"], "twice": []}           what Ray thinks, again and again; two nodes must not have one name
    {"trouble": "there is no Ray at 10.0.0.1:6379"}                        why there is no connection

The hands of a machine are a detached actor. Its GPUs are reserved by a detached placement group, so that tasks of Ray
never meet jobs of Fairway on one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import fairway
from fairway.runtime.processes.hands import RemoteHands

NAMESPACE = "fairway"
OLDEST = (2, 52)
"""The oldest Ray that has everything that is used here: authentication by token came with it."""
LABELS = ("fairway.pod", "fairway.rack")
"""The labels of a node of Ray that say where it is, from the largest unit to the smallest."""
_NODES_EVERY_S, _BEAT_S = 0.5, 2.0
_NEWS_S, _ANSWER_S = 4.0, 8.0
"""How long a question for news may stay open, and how long hands have to answer anything else."""
_CONNECT_S, _STORE_S = 12.0, 20.0
"""How long a connection may take, and for how long the control store may be silent, before another bridge tries."""
_RESERVE_S = 2.0
_REAPER = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"


def name_of(row: Mapping[str, Any]) -> str:
    """What a node is called: by its label, by the name that it was started with, or by its host."""
    label, name = row.get("Labels", {}).get("fairway.name"), row.get("NodeName")
    return str(label or (name if name != row["NodeManagerAddress"] else "") or row["NodeManagerHostname"])


def rack_of(row: Mapping[str, Any]) -> str:
    """Where a node is, as its labels say."""
    labels = row.get("Labels", {})
    return "/".join(str(labels[one]) for one in LABELS if labels.get(one))


class Bridge:
    """One connection to Ray. `told` is what the scheduler says about itself: owner, root, GPUs, and the shared file."""

    def __init__(self, sock: socket.socket, address: str, told: Mapping[str, Any]) -> None:
        self._sock = sock
        self._address = address
        self._told = told
        self._known: dict[str, list[str]] = {}
        self._actors: dict[str, Any] = {}
        self._tended: dict[str, asyncio.Task[None]] = {}
        self._names: dict[str, str] = {}
        self._replaced: set[str] = set()
        self._renewed: set[str] = set()
        self._sent: dict[str, Any] = {}
        self._sent_s = 0.0
        self._answered_s = time.monotonic()
        self._ray: Any = None
        self._own_node = ""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Carry messages until the scheduler is gone, or Ray is."""
        self._loop = asyncio.get_running_loop()
        reader, self._writer = await asyncio.open_connection(sock=self._sock)
        self._connect()
        threading.Thread(target=self._ask_nodes, name="nodes", daemon=True).start()
        asyncio.get_running_loop().create_task(self._watch())
        while line := await reader.readline():
            message = json.loads(line)
            if "known" in message:
                for machine, directories in message["known"].items():
                    self._known.setdefault(machine, []).extend(directories)
            else:
                asyncio.get_running_loop().create_task(self._call(message))

    def _send(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    def _fail(self, text: str) -> None:
        """Say why there is no connection, and end."""
        with suppress(OSError):
            self._sock.setblocking(True)
            os.write(self._sock.fileno(), json.dumps({"trouble": text}).encode() + b"\n")
        os._exit(4)

    def _connect(self) -> None:
        host, _, port = self._address.rpartition(":")
        if host:
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
            except (OSError, ValueError) as error:
                self._fail(f"there is no Ray at {self._address} ({getattr(error, 'strerror', None) or error})")
        # Ray may wait for ever.
        token = os.environ.get("RAY_AUTH_MODE") == "token"
        hint = "its token may be another one" if token else "if it wants a token, set RAY_AUTH_MODE=token here"
        timer = threading.Timer(_CONNECT_S, self._fail, [f"Ray at {self._address} does not answer; {hint}"])
        timer.daemon = True
        timer.start()
        import ray

        version = tuple(int(word) for word in ray.__version__.split(".")[:2])
        if version < OLDEST:
            self._fail(f"Ray {ray.__version__} is too old; {'.'.join(map(str, OLDEST))} is the oldest that works")
        if os.environ.get(_REAPER, "").lower() in ("1", "true"):
            self._fail(f"{_REAPER} is set: Ray would end jobs when a node's hands end")
        try:
            ray.init(self._address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._fail(f"there is no Ray at {self._address} ({lines[0] if lines else type(error).__name__})")
        timer.cancel()
        self._ray = ray
        self._own_node = ray.get_runtime_context().get_node_id()
        self._actor = ray.remote(RemoteHands)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _ask_nodes(self) -> None:
        """Ask Ray which nodes there are, in a thread of its own: it may take as long as it likes to answer."""
        assert self._loop is not None
        while True:
            rows = {row["NodeID"]: row for row in self._ray.nodes() if row["Alive"]}
            self._answered_s = time.monotonic()
            self._loop.call_soon_threadsafe(self._take_nodes, rows)
            time.sleep(_NODES_EVERY_S)

    def _take_nodes(self, rows: dict[str, Mapping[str, Any]]) -> None:
        if self._own_node not in rows:
            # Ray takes this process for gone as well, and would run nothing of it any more.
            self._fail("the raylet of this machine is gone")
        new: dict[str, str] = {}
        twice = set()
        for node_id in rows.keys() - self._tended.keys() - self._replaced:
            name = name_of(rows[node_id])
            twice |= {name} & new.keys()
            new[name] = node_id
        for node_id in [one for one in self._tended if one not in rows or self._names[one] in new]:
            # One that has come back may be there before Ray has noticed that it was gone.
            self._replaced |= {node_id} & rows.keys()
            self._tended.pop(node_id).cancel()
            if node_id not in rows:
                threading.Thread(target=self._release, args=(node_id,), daemon=True).start()
        for name, node_id in new.items():
            assert self._loop is not None
            self._names[node_id] = name
            self._tended[node_id] = self._loop.create_task(self._tend(node_id, rows[node_id]))
        self._replaced &= rows.keys()
        told = {"alive": sorted(self._names[one] for one in self._tended), "twice": sorted(twice)}
        if told != self._sent or time.monotonic() > self._sent_s + _BEAT_S:
            self._sent, self._sent_s = told, time.monotonic()
            self._send(told)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            if time.monotonic() - self._answered_s > _STORE_S:
                self._fail("the control store of Ray does not answer")

    async def _tend(self, node_id: str, row: Mapping[str, Any]) -> None:
        """Keep in touch with the hands of a node, as long as it is there."""
        name = name_of(row)
        while True:
            try:
                await self._talk(node_id, name, row)
            except asyncio.CancelledError:
                if node_id not in self._replaced:
                    self._actors.pop(name, None)
                    self._send({"machine": name, "silent": "Ray has lost it"})
                raise
            except Exception as error:
                self._actors.pop(name, None)
                self._send({"machine": name, "silent": _in_short(error)})
            await asyncio.sleep(0.3)

    async def _talk(self, node_id: str, name: str, row: Mapping[str, Any]) -> None:
        told, address = self._told, str(row["NodeManagerAddress"])
        hands = await asyncio.to_thread(self._hands, node_id, name, address)
        about = [told[name] for name in ("owner", "root", "gpus", "shared", "text")]
        asked_s = time.time()
        try:
            hello = await asyncio.wait_for(hands.hello.remote(*about), _ANSWER_S)
            fits = hello.get("version", fairway.__version__) == fairway.__version__
        except (AttributeError, TypeError):
            fits = False
        if not fits and node_id not in self._renewed:
            # They may be left from before an upgrade.
            self._renewed.add(node_id)
            self._ray.kill(hands, no_restart=True)
            raise ConnectionError("its hands are of another version")
        if "date_s" in hello:
            hello["ahead_s"] = hello["date_s"] - (asked_s + time.time()) / 2
        reserved = await asyncio.to_thread(self._reserve, node_id, row)
        where = {"address": address, "rack": rack_of(row), "reserved": reserved}
        self._send({"machine": name, "hello": hello, **where})
        self._actors[name] = hands
        version = -1
        while "taken" not in hello:
            known, self._known[name] = self._known.get(name, []), []
            question = hands.news.remote(told["owner"], known, version, _NEWS_S if reserved else 1.0)
            news = await asyncio.wait_for(question, _NEWS_S + _ANSWER_S / 2)
            if "taken" in news:
                raise ConnectionError(f"another scheduler has it: {news['taken']}")
            version = news["version"]
            if not reserved:
                reserved = await asyncio.to_thread(self._reserve, node_id, row)
            self._send({"machine": name, "news": {**news, "reserved": reserved}})
        await asyncio.sleep(_ANSWER_S)

    def _hands(self, node_id: str, name: str, address: str) -> Any:
        """The actor of a node, which is made if there is none."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = self._actor.options(
            name=f"hands-{node_id}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=1000,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        return options.remote(name, address)

    def _reserve(self, node_id: str, row: Mapping[str, Any]) -> bool:
        """Take all GPUs of a node away from Ray's own tasks. False if some of these still have GPUs."""
        gpus = row["Resources"].get("GPU", 0)
        if not gpus:
            return True
        from ray.util.placement_group import get_placement_group, placement_group

        name = f"gpus-{node_id}"
        try:
            group = get_placement_group(name)
        except ValueError:
            group = placement_group(
                [{"GPU": gpus}],
                strategy="STRICT_PACK",
                name=name,
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": node_id}],
            )
        return bool(group.wait(_RESERVE_S))

    def _release(self, node_id: str) -> None:
        """A node is gone: its group would wait for it for ever."""
        from ray.util.placement_group import get_placement_group, remove_placement_group

        with suppress(Exception):
            remove_placement_group(get_placement_group(f"gpus-{node_id}"))

    # --- verbs -------------------------------------------------------------------------------------------------------

    async def _call(self, message: Mapping[str, Any]) -> None:
        number, hands = message["call"], self._actors.get(message["machine"])
        if hands is None:
            self._send({"call": number, "failed": "it does not answer"})
            return
        try:
            answer = await asyncio.wait_for(hands.call.remote(message["verb"], message["about"]), _ANSWER_S)
        except Exception as error:
            self._send({"call": number, "failed": _in_short(error)})
            return
        self._send({"call": number, **answer})


def _in_short(error: Exception) -> str:
    """What went wrong, in a line."""
    if isinstance(error, asyncio.TimeoutError) or type(error).__name__.startswith("Actor"):
        return "its hands do not answer"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def main() -> None:
    """Carry messages over the socket with this number, for the scheduler that the last argument describes."""
    number, address, told = sys.argv[1:4]
    sock = socket.socket(fileno=int(number))
    with suppress(ConnectionError, asyncio.CancelledError):
        asyncio.run(Bridge(sock, address, json.loads(told)).run())
    # Ray's own threads would keep a process alive whose scheduler is gone.
    os._exit(0)


if __name__ == "__main__":
    main()
