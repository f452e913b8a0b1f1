"""What keeps one bad job from taking its executor down for ever: a memory of crashes, and a watchdog."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fairway.gpu.talk import Switchboard

MOST_CRASHES = 3
"""How often an executor may die in steps of a job before the job is refused."""
STUCK = 71
"""The exit code if a job whose seat is gone does not end its step."""
STUCK_S = 10.0


class Suspicion:
    """Whose code ran when an executor died: a job that takes it down again and again is refused."""

    def __init__(self, folder: Path) -> None:
        self._crashes_file = folder / "crashes.json"
        self._now = ""
        self._fd = os.open(folder / "current", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._counts: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            self._counts = dict(json.loads(self._crashes_file.read_text(encoding="utf-8")))
        died_in = os.pread(self._fd, 200, 0).decode(errors="replace").strip()
        if died_in:
            self._counts[died_in] = self._counts.get(died_in, 0) + 1
            self._crashes_file.write_text(json.dumps(self._counts), encoding="utf-8")
            self.runs("")

    def crashes(self, job: str) -> int:
        """How often an executor has died in steps of a job."""
        return self._counts.get(job, 0)

    def trust(self, job: str) -> None:
        """A job has got further than it was."""
        if self._counts.pop(job, None) is not None:
            self._crashes_file.write_text(json.dumps(self._counts), encoding="utf-8")

    def runs(self, job: str) -> None:
        """Code of this job runs from now on."""
        if job != self._now or not job:
            self._now = job
            os.pwrite(self._fd, job[:200].ljust(200).encode(), 0)

    def forget(self) -> None:
        """All jobs have ended."""
        self._crashes_file.unlink(missing_ok=True)

    def nobody_runs(self) -> None:
        """No code of a job runs."""
        self.runs("")


class Watchdog:
    """Ends the process if a job does not end its step although its seat is gone: nothing else can stop it."""

    def __init__(self, seats: Switchboard) -> None:
        self._seats = seats
        self._seat = -1
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    @contextlib.contextmanager
    def over(self, seat: int) -> Iterator[None]:
        """While a step of this seat's job runs."""
        self._seat = seat
        try:
            yield
        finally:
            self._seat = -1

    def _run(self) -> None:
        gone_s = 0.0
        while True:
            time.sleep(1.0)
            seat = self._seat
            gone_s = gone_s + 1.0 if seat >= 0 and not self._seats.is_there(seat) else 0.0
            if gone_s > STUCK_S:
                print("a job whose process is gone does not end its step; this process ends", flush=True)
                os._exit(STUCK)
