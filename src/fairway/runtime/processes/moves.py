"""Moves the GPU memory of an attempt's suspended ranks out of the way, and back before they go on.

A keeper does it when the scheduler asks, by the cheapest way that works:

* The ranks move it out themselves (`fairway.gpu.movable`). They are asked by a signal, and let go on until they answer.
* The driver takes everything off the GPU. A helper of the scheduler asks it (`fairway.gpu.checkpointer`). The ranks are
  let go on for that, because the driver waits for ever for a process that stands still. Their calls to CUDA wait until
  the driver has brought everything back, so nothing of theirs uses the GPU meanwhile.
* Both: what the ranks leave there themselves (the CUDA context) is taken by the driver, if it stands in the way.

The files are in the attempt's directory.

    memory        what the scheduler wants: {"memory": "out", "most_bytes": N, "held_bytes": N}, "in", or "pin" (get
                  host memory ready). With "all", nothing may stay on the GPU.
    moves-PID     says that this process can move its memory; made by the process
    moved-PID     how far it is; made by the process, and removed before it is asked again
    where.json    where the memory is, for the scheduler: made by the keeper
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any, Literal, Protocol

REQUEST = signal.SIGRTMIN + 5
"""The signal that asks a process to look at `memory`. `fairway.gpu.movable` has the same."""
ANSWER_S = 10.0
"""How long a process has to begin a move. It answers when it is between two instructions of Python."""
BYTES_PER_S = 2e8
"""A move that is slower than this has failed. The first one is the slowest, because host memory has to be pinned."""
RETURN_S = 60.0
"""How long it is tried to bring memory back. It may be taken by a process that is not ours."""
_LOOK_S = 0.002
_AGAIN_S = 0.05
_MOST_ANSWER = 4096

Place = Literal["gpu", "leaving", "host", "returning"]


class MovedRanks(Protocol):
    """What a keeper knows about its ranks, and does with them."""

    directory: Path
    launch: dict[str, Any]
    stopped: bool
    cause: str

    def processes(self) -> list[int]:
        """All their live processes."""
        ...

    def rank_folder(self) -> Path:
        """Where they may write files."""
        ...

    def signal_all(self, signo: int) -> None:
        """Signal all of them."""
        ...

    def stand_still(self) -> None:
        """Stop all processes."""
        ...

    def is_back(self) -> None:
        """Their memory is on the GPU again."""
        ...

    def give_up(self, problem: str) -> None:
        """Something that they cannot live with has happened."""
        ...


class MovedMemory:
    """Where the GPU memory of an attempt is. `step` goes on with a move; it is due at `next_s`."""

    def __init__(self, ranks: MovedRanks) -> None:
        self.place: Place = "gpu"
        self.next_s = float("inf")
        self._ranks = ranks
        self._helper = str(ranks.launch.get("checkpointer") or "")
        self._asked: dict[int, float] = {}
        self._began_s = 0.0
        self._bytes = 0
        self._ways: list[str] = []
        self._call: DriverCall | None = None
        self._problem = ""

    @property
    def away(self) -> bool:
        """Whether some of it is not on the GPU, or may not be."""
        return self.place != "gpu"

    @property
    def is_wanted_back(self) -> bool:
        """Whether the scheduler has made room for it."""
        return self._wish().get("memory") == "in"

    def look(self) -> None:
        """The scheduler wants something."""
        wish = self._wish()
        if wish.get("memory") == "pin":
            for pid in self._movers():
                _signal(pid)
        elif wish.get("memory") == "out" and self._ranks.stopped:
            if self.place == "gpu":
                self._leave()
            elif self.place == "host" and wish.get("all") and self._ways == ["moved"]:
                self._leave_nothing()

    def come_back(self) -> None:
        """Bring it back, and let the ranks go on."""
        if self.place == "host":
            self._began_s = time.monotonic()
            self._set("returning")
            self._ranks.signal_all(signal.SIGCONT)
            if "driver" in self._ways:
                self._ask_driver("in")
        self.next_s = 0.0

    def step(self, now_s: float) -> None:
        """Go on with a move, if it is time."""
        if now_s < self.next_s:
            return
        self.next_s = now_s + _LOOK_S
        if self.place == "leaving":
            self._go_on_leaving(now_s)
        elif self.place == "returning":
            self._go_on_returning(now_s)
        else:
            self.next_s = float("inf")

    # --- out ---------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        self._began_s = self.next_s = time.monotonic()
        self._bytes, self._ways = 0, []
        self._asked = {}
        for pid in self._movers():
            with contextlib.suppress(OSError):
                self._answer_path(pid).unlink(missing_ok=True)
            self._asked[pid] = self._began_s
            _signal(pid)
        self._set("leaving")
        # A signal that waits is handled before anything else.
        self._ranks.signal_all(signal.SIGCONT)
        if not self._asked:
            self._leave_by_driver()

    def _leave_by_driver(self) -> None:
        """Let the driver take everything, if the host has room for it. The driver does not ask."""
        wish = self._wish()
        if _number(wish.get("held_bytes")) > _number(wish.get("most_bytes")):
            self._stay("its memory is more than the host may take")
        else:
            self._ask_driver("out")

    def _leave_nothing(self) -> None:
        """The ranks have moved what they can. The driver takes the rest."""
        self._began_s = self.next_s = time.monotonic()
        self._set("leaving")
        self._ranks.signal_all(signal.SIGCONT)
        self._ask_driver("out")

    def _go_on_leaving(self, now_s: float) -> None:
        if self._call is not None:
            reply = self._call.reply(now_s)
            if reply is not None:
                hangs, self._call = self._call.hangs, None
                self._driver_left(reply, hangs=hangs)
            return
        if self._wish().get("memory") != "out":
            self._set("returning")
            return
        answers = {pid: self._answer(pid) for pid in self._asked if _catches(pid)}
        states = {answer.get("state") for answer in answers.values()}
        refused = next((one for one in answers.values() if one.get("state") == "refused"), None)
        if refused is not None:
            self._stay(str(refused.get("problem", "")) or "its processes refuse")
        elif states <= {"out"}:
            self._bytes = sum(_number(answer.get("bytes")) for answer in answers.values())
            self._ways = ["moved"]
            if self._wish().get("all"):
                self._ask_driver("out")
            else:
                self._is_out()
        else:
            self._wait_for(answers, now_s)

    def _wait_for(self, answers: dict[int, dict[str, Any]], now_s: float) -> None:
        for pid, answer in answers.items():
            if answer.get("state") == "busy" and now_s >= self._asked[pid] + _AGAIN_S:
                self._asked[pid] = now_s
                _signal(pid)
        expected_s = sum(_number(answer.get("bytes")) for answer in answers.values()) / BYTES_PER_S
        if now_s > self._began_s + ANSWER_S + expected_s:
            self._leave_by_driver()

    def _driver_left(self, reply: dict[str, Any], *, hangs: bool) -> None:
        problem = str(reply.get("problem") or "")
        if not problem:
            self._ways.append("driver")
            self._bytes += _number(self._wish().get("held_bytes"))
            self._is_out()
        elif self._ways == ["moved"]:
            # What the processes have moved themselves is out. The rest is small and stays.
            if hangs:
                # The driver may have begun. It is asked to undo that before they go on.
                self._ways.append("driver")
            self._is_out(problem)
        else:
            self._stay(problem)
            if hangs:
                # It may have begun. It is asked to undo that.
                self._began_s = time.monotonic()
                self._ask_driver("in")

    def _is_out(self, problem: str = "") -> None:
        if not self._ranks.cause:
            self._ranks.stand_still()
        self._set("host", seconds=time.monotonic() - self._began_s, problem=_shown(problem))
        if not self._ranks.stopped:
            # It was let go on meanwhile.
            self.come_back()

    def _stay(self, problem: str) -> None:
        """It cannot leave. What has left already comes back."""
        self._note({"memory": "in"})
        self._problem = _shown(problem)
        self._set("returning")

    # --- back --------------------------------------------------------------------------------------------------------

    def _go_on_returning(self, now_s: float) -> None:
        if self._call is not None:
            reply = self._call.reply(now_s)
            if reply is None:
                return
            self._call = None
            problem = str(reply.get("problem") or "")
            if problem and now_s < self._began_s + RETURN_S:
                self.next_s = now_s + 1.0
                self._ask_driver("in")
                return
            if problem:
                self._ranks.give_up(f"its GPU memory could not be brought back: {problem}")
                return
        states = {self._answer(pid).get("state") for pid in self._asked if _catches(pid)}
        if not states & {"out", "moving"}:
            problem, self._problem = self._problem, ""
            self._set("gpu", seconds=time.monotonic() - self._began_s, problem=problem)
            self._ranks.is_back()

    # --- files, processes --------------------------------------------------------------------------------------------

    def _set(self, place: Place, *, seconds: float = 0.0, problem: str = "") -> None:
        self.place = place
        told = {"place": place, "bytes": self._bytes, "ways": self._ways, "seconds": seconds, "problem": problem}
        self._note_where(told)

    def _note_where(self, told: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            _replace(self._ranks.directory / "where.json", told, 0o600)

    def _note(self, wish: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            _replace(self._ranks.directory / "memory", wish, 0o644)

    def _wish(self) -> dict[str, Any]:
        return _read(self._ranks.directory / "memory")

    def _movers(self) -> list[int]:
        """The live processes of the ranks that can move their memory themselves."""
        ours = set(self._ranks.processes())
        named = (path.name.partition("-")[2] for path in self._ranks.rank_folder().glob("moves-*"))
        found = [int(name) for name in named if name.isascii() and name.isdigit()]
        return sorted(pid for pid in found if pid in ours and _catches(pid))

    def _answer_path(self, pid: int) -> Path:
        return self._ranks.rank_folder() / f"moved-{pid}"

    def _answer(self, pid: int) -> dict[str, Any]:
        return _read(self._answer_path(pid))

    def _ask_driver(self, what: str) -> None:
        expected_s = ANSWER_S + RETURN_S
        self._call = DriverCall(self._helper, what, self._ranks.processes(), expected_s)


class DriverCall:
    """One request to the helper that talks to the driver. `reply` gives None until there is one.

    It `hangs` if there was none in time.
    """

    def __init__(self, helper: str, what: str, pids: list[int], limit_s: float) -> None:
        self._until_s = time.monotonic() + limit_s + 5.0
        self._got = b""
        self.hangs = False
        self._socket: socket.socket | None = None
        self._failed = ""
        try:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(2.0)
            if not helper:
                raise OSError("there is no helper for the driver's way")
            self._socket.connect(helper)
            self._socket.sendall(json.dumps({"do": what, "pids": pids, "limit_s": limit_s}).encode() + b"\n")
            self._socket.setblocking(False)
        except OSError as error:
            self._failed = str(error)

    def reply(self, now_s: float) -> dict[str, Any] | None:
        """What the helper answers, if it has."""
        if self._socket is None or self._failed:
            return self._closed({"problem": self._failed})
        try:
            part = self._socket.recv(65_536)
        except BlockingIOError:
            self.hangs = now_s >= self._until_s
            return self._closed({"problem": "the driver does not answer"}) if self.hangs else None
        except OSError as error:
            return self._closed({"problem": str(error)})
        self._got += part
        if part and not self._got.endswith(b"\n"):
            return None
        try:
            told = json.loads(self._got)
        except ValueError:
            told = {"problem": "the helper for the driver's way has ended"}
        return self._closed(told if isinstance(told, dict) else {})

    def _closed(self, told: dict[str, Any]) -> dict[str, Any]:
        if self._socket is not None:
            self._socket.close()
        return told


def _signal(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, REQUEST)


def _catches(pid: int) -> bool:
    """Whether a process has a handler for the request. Without one, the signal would end it."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (REQUEST - 1) & 1)
    except (OSError, ValueError, IndexError):
        return False
    return False


def _read(path: Path) -> dict[str, Any]:
    """A small JSON object from a file; {} if there is none. What processes of users write is not trusted."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        told = json.loads(os.read(fd, _MOST_ANSWER))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(fd)
    return told if isinstance(told, dict) else {}


def _replace(path: Path, content: dict[str, Any], mode: int) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, mode)
        json.dump(content, file)
    scratch.replace(path)


def _shown(problem: str) -> str:
    """A problem as others may read it: a process of the job's owner may have written it."""
    return "".join(filter(str.isprintable, problem))[:200]


def _number(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 2**60 else 0
