"""The process of a job that an executor hosts: `python -m fairway.gpu.seat package.module:make_job [ARGUMENT…]`.

To its keeper it is a rank like others. It has the job hosted by the executor at FAIRWAY_EXECUTOR, prints what the job
prints, writes its reports, and asks the executor to save and drop the job when it gets SIGTERM. If the executor dies,
it waits for the next one, which the executor's own keeper starts, and has the job hosted from its last saved state.

It needs only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairway.gpu.talk import LineReader, Message, connect, encoded
from fairway.train.context import Context
from fairway.train.reporter import Lines, Reporter
from fairway.train.stopping import REQUEUE_CODE, StopFlag

PATIENCE_S = 60.0
"""How long a seat waits for an executor that does not answer."""
_RETRY_S = 0.05
_LOOK_EVERY_S = 0.2
_PRINT_EVERY_S = 1.0
REQUEST = signal.SIGRTMIN + 5
"""The signal of a keeper that wants the memory to move, as `runtime.processes.moves` has it."""


_VARIABLE = re.compile(r"\\\$|\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


class UnknownVariableError(Exception):
    """An argument names a variable that the job does not have."""


def with_variables(text: str, environment: Mapping[str, str]) -> str:
    """An argument with the values of `$NAME` and `${NAME}`, as a shell puts them in. `\\$` is a plain $."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            return "$"
        if name not in environment:
            raise UnknownVariableError(f"{text}: the job has no variable {name}. Give it with --env {name}=VALUE")
        return environment[name]

    return _VARIABLE.sub(value, text)


class Seat:
    """One job, from its first hosting to its end."""

    def __init__(self, context: Context, executor: Path, factory: str, arguments: Sequence[str]) -> None:
        self._context = context
        self._executor = executor
        self._factory = factory
        self._arguments = list(arguments)
        self._resume = context.resume
        self._reporter = Reporter(Lines(context.report, speaks=lambda: True))
        self._printed_s = 0.0
        self._said: str | None = None
        self._stop = StopFlag()
        self._memory = AskedMemory(context.attempt)

    def check(self) -> str:
        """What is wrong with the arguments; "" if nothing is."""
        try:
            self._wanted()
        except UnknownVariableError as error:
            return str(error)
        return ""

    def run(self) -> int:
        """Have the job hosted until it has ended. Returns the exit code of this process."""
        problem = self.check()
        if problem:
            self._say(problem)
            return 1
        self._stop.install()
        self._memory.install()
        patience_s = PATIENCE_S
        while True:
            connection = self._connected(patience_s)
            if connection is None:
                if self._stop.is_set:
                    return REQUEUE_CODE if self._resume else 128 + signal.SIGTERM
                self._say(f"no executor has answered for {patience_s:.0f} s{self._last_words()}")
                return REQUEUE_CODE if self._resume else 1
            with connection:
                code = self._attended(connection)
            if code is not None:
                self._reporter.flush()
                return code
            self._say("the executor is gone; the job goes on from its last saved state when there is another one")

    def _connected(self, patience_s: float) -> socket.socket | None:
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s and not self._stop.is_set:
            try:
                return connect(self._executor)
            except OSError:
                time.sleep(_RETRY_S)
        return None

    def _last_words(self) -> str:
        """What the executor wrote last."""
        try:
            text = self._executor.parents[1].joinpath("executor.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return f"; its last words were:\n{text[-2000:]}" if text else ""

    def _attended(self, connection: socket.socket) -> int | None:
        """Stay with the job. Returns the exit code, or None if the executor is gone."""
        reader, asked = LineReader(), False
        try:
            connection.sendall(encoded({"host": self._wanted()}))
            while True:
                if self._stop.is_set and not asked:
                    asked = True
                    connection.sendall(encoded({"leave": True}))
                if self._memory.is_asked_out():
                    connection.sendall(encoded({"move": True}))
                if not select.select([connection], (), (), _LOOK_EVERY_S)[0]:
                    continue
                piece = connection.recv(65_536)
                if not piece:
                    return None
                for message in reader.take(piece):
                    code = self._heard(message)
                    if code is not None:
                        return code
        except OSError:
            return None

    def _wanted(self) -> Message:
        context = self._context
        return {
            "job": context.job_id or str(os.getpid()),
            "factory": self._factory,
            "arguments": [with_variables(one, os.environ) for one in self._arguments],
            "environment": dict(os.environ),
            "attempt": str(context.attempt or ""),
            "checkpoints": str(context.checkpoints or ""),
            "resume": self._resume,
            "memory_bytes": int(os.environ.get("FAIRWAY_GPU_MEMORY") or 0),
            "mark": f"-attempt-{context.restart_count + 1}",
        }

    def _heard(self, message: Mapping[str, Any]) -> int | None:
        """Take in what the executor says. Returns the exit code if the job is over."""
        if "log" in message:
            sys.stdout.write(str(message["log"]))
            sys.stdout.flush()
        elif "hosted" in message:
            about = message["hosted"]
            self._reporter.total = about["steps"]
            self._reporter.begin_at(about["step"])
            self._reporter.announce(steps=about["steps"])
        elif "saved" in message:
            self._resume = True
            self._reporter.pass_step(message["step"])
            self._reporter.write(step=message["step"], checkpoint=message["saved"], save_s=message["took_s"])
        elif "figures" in message:
            self._figures(message["step"], message["figures"])
        elif "waits" in message:
            self._say(f"waits for memory of the GPU: {message['waits']}")
        elif "moved" in message or "stays" in message:
            self._memory.answer(message)
        elif "error" in message:
            self._say(str(message["error"]))
            return 1
        elif "left" in message:
            return REQUEUE_CODE if self._resume else 128 + signal.SIGTERM
        elif "done" in message:
            self._reporter.pass_step(message["done"])
            return 0
        return None

    def _figures(self, step: int, figures: Mapping[str, Any]) -> None:
        self._reporter.report(step, None, None, figures.get("loss"))
        now_s = time.monotonic()
        if figures and (now_s >= self._printed_s + _PRINT_EVERY_S or step == self._reporter.total):
            self._printed_s = now_s
            sys.stdout.write(f"step {step}: {' '.join(map(_shown, figures.items()))}\n")
            sys.stdout.flush()

    def _say(self, text: str) -> None:
        """Say something once."""
        if text != self._said:
            self._said = text
            sys.stdout.write(f"fairway: {text}\n")
            sys.stdout.flush()


class AskedMemory:
    """Requests of the keeper to move the job's memory off the GPU, in the way of `fairway.gpu.movable`.

    The executor moves it. It comes back when the job goes on.
    """

    def __init__(self, attempt: Path | None) -> None:
        self._folder = attempt
        self._asked = self._out = False

    def install(self) -> None:
        """Be ready for requests, and say so."""
        if self._folder is not None:
            signal.signal(REQUEST, self._note)
            with contextlib.suppress(OSError):
                (self._folder / f"moves-{os.getpid()}").touch()

    def is_asked_out(self) -> bool:
        """Whether the memory was just asked to leave. Says that it is back if it is wanted back."""
        if self._out and self._wish() != "out":
            self._out = False
            self._say(state="in")
        asked, self._asked = self._asked, False
        return asked and self._wish() == "out"

    def answer(self, message: Mapping[str, Any]) -> None:
        """Pass on what the executor has done."""
        self._out = "moved" in message
        if self._out:
            self._say(state="out", bytes=message["moved"])
        else:
            self._say(state="refused", problem=message["stays"])

    def _note(self, signo: int, frame: object) -> None:
        self._asked = True

    def _wish(self) -> str:
        whole = None if self._folder is None else _whole(self._folder)
        try:
            return str(json.loads((whole / "memory").read_text(encoding="utf-8"))["memory"]) if whole else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _say(self, **what: object) -> None:
        if self._folder is not None:
            path = self._folder / f"moved-{os.getpid()}"
            with contextlib.suppress(OSError):
                path.with_name(f"{path.name}.new").write_text(json.dumps(what), encoding="utf-8")
                path.with_name(f"{path.name}.new").replace(path)


def _whole(folder: Path) -> Path:
    """The directory of the attempt. Another user's job has a folder of its own in it."""
    return folder.parent if folder.name == "shared" else folder


def _shown(figure: tuple[str, Any]) -> str:
    name, value = figure
    return f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"


def main() -> None:
    """Have the job of the arguments hosted."""
    executor = os.environ.get("FAIRWAY_EXECUTOR", "")
    if not executor or len(sys.argv) < 2:
        sys.exit("fairway: this process is started by the scheduler; use `fairway submit --executor`")
    factory, *arguments = sys.argv[1:]
    sys.exit(Seat(Context.from_environment(), Path(executor), factory, arguments).run())


if __name__ == "__main__":
    main()
