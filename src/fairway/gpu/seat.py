"""The process of a job that an executor hosts: `python -m fairway.gpu.seat package.module:make_job [ARGUMENT…]`.

To its keeper it is a rank like others. It has the job hosted by the executor at FAIRWAY_EXECUTOR, prints what the job
prints, writes its reports, and asks the executor to save and drop the job when it gets SIGTERM. If the executor dies,
it waits for the next one, which the executor's own keeper starts, and has the job hosted from its last saved state.

It needs only the standard library.
"""

from __future__ import annotations

import os
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

    def run(self) -> int:
        """Have the job hosted until it has ended. Returns the exit code of this process."""
        self._stop.install()
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
            "arguments": self._arguments,
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
