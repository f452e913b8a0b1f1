"""A bridge without Ray: real hands of several machines in this process, and faults at will."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairway.runtime.processes.bridge_link import BridgeLink
from fairway.runtime.processes.hands import Hands
from fairway.runtime.processes.ray_site import RaySite


class PlainBridge:
    """Machines by name, with their hands. A test may make them silent, dead, or strange (`lies` about a machine)."""

    def __init__(self, root: Path, names: list[str], gpus: str = "2", address: str = "10.0.0.1") -> None:
        self.root = root
        self.gpus = gpus
        self.address = address
        self.alive = list(names)
        self.silent: set[str] = set()
        self.lies: dict[str, dict[str, Any]] = {}
        self.twice: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.starts = 0
        self.hands: dict[str, Hands] = {}
        self._known: dict[str, list[str]] = {}
        self._sock: socket.socket | None = None
        self._lock = threading.RLock()
        self._stop = threading.Event()
        for name in names:
            self.hands[name] = Hands(name, root, gpus)

    def site(self, **about: Any) -> RaySite:
        """A site over these machines."""
        about.setdefault("log", self.root / "log")
        return RaySite("plain", self.root, self.gpus, about.pop("owner", "me"), bridge=self.start, **about)

    def start(self, address: str, told: Mapping[str, Any], log: Path) -> BridgeLink:
        """Start, as the site would start a process."""
        ours, theirs = socket.socketpair()
        self.starts += 1
        self._sock = theirs
        stop = self._stop = threading.Event()
        threading.Thread(target=self._read, args=(theirs, stop), daemon=True).start()
        threading.Thread(target=self._tell, args=(theirs, stop, told), daemon=True).start()
        return BridgeLink(ours, stop.set)

    def break_down(self) -> None:
        """The bridge dies."""
        self._stop.set()
        assert self._sock is not None
        self._sock.shutdown(socket.SHUT_RDWR)

    def restart_hands(self, name: str) -> None:
        """The hands of a machine die, and others take their place."""
        with self._lock:
            self.hands[name].close()
            self.hands[name] = Hands(name, self.root, self.gpus)

    def join(self, name: str) -> None:
        """Another machine comes."""
        with self._lock:
            self.hands.setdefault(name, Hands(name, self.root, self.gpus))
            self.alive.append(name)

    def close(self) -> None:
        """End all hands."""
        self._stop.set()
        for hands in self.hands.values():
            hands.close()

    def _send(self, sock: socket.socket, message: Mapping[str, Any]) -> None:
        with self._lock:
            sock.sendall(json.dumps(message).encode() + b"\n")

    def _read(self, sock: socket.socket, stop: threading.Event) -> None:
        with suppress(OSError), sock.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "known" in message:
                    for name, directories in message["known"].items():
                        self._known.setdefault(name, []).extend(directories)
                elif not stop.is_set():
                    threading.Thread(target=self._call, args=(sock, message), daemon=True).start()

    def _call(self, sock: socket.socket, message: Mapping[str, Any]) -> None:
        name = message["machine"]
        self.calls.append((name, message["verb"]))
        if name in self.silent:
            answer: dict[str, Any] = {"failed": "it does not answer"}
        else:
            try:
                answer = {"value": self.hands[name].call(message["verb"], *message["about"]).result(10)}
            except OSError as error:
                answer = {"error": str(error)}
        try:
            self._send(sock, {"call": message["call"], **answer})
        except OSError:
            return

    def _tell(self, sock: socket.socket, stop: threading.Event, told: Mapping[str, Any]) -> None:
        greeted: dict[str, tuple[Hands, int]] = {}
        while not stop.wait(0.01):
            try:
                with self._lock:
                    self._tell_once(sock, told, greeted)
            except OSError:
                return

    def _tell_once(self, sock: socket.socket, told: Mapping[str, Any], greeted: dict[str, tuple[Hands, int]]) -> None:
        for name, hands in self.hands.items():
            known, version = greeted.get(name, (None, -1))
            if name in self.silent or name not in self.alive:
                if greeted.pop(name, None) is not None:
                    self._send(sock, {"machine": name, "silent": "it does not answer"})
            elif known is not hands:
                greeted[name] = hands, -1
                hello = hands.call("hello", told["owner"], told["shared"], told["text"]).result(10)
                hello |= {"ahead_s": 0.0, "token": True, **self.lies.get(name, {})}
                where = {"address": self.address, "rack": "", "reserved": True}
                self._send(sock, {"machine": name, "hello": hello, **where})
            elif hands.version != version:
                news = hands.news(told["owner"], self._known.pop(name, []))
                if "taken" not in news:
                    greeted[name] = hands, news["version"]
                    self._send(sock, {"machine": name, "news": {**news, "reserved": True}})
        self._send(sock, {"alive": sorted(self.alive), "twice": self.twice})
