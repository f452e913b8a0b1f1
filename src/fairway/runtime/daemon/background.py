"""Work that a daemon does now and then beside its scheduler, in a thread."""

from __future__ import annotations

import threading

from fairway.core.errors import FairwayError
from fairway.runtime.jobs.commands import StoppedError

JOIN_S = 5.0


class Background:
    """Calls `work` now and then, until it is closed or the scheduler has stopped. A failure is told, and it goes on."""

    def __init__(self, name: str, every_s: float) -> None:
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Work from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the present piece of work."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def work(self) -> None:
        """One piece of work."""
        raise NotImplementedError

    def failed(self, why: str) -> None:
        """Tell the operator that a piece of work has failed."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self.work()
            except StoppedError:
                # The daemon knows.
                return
            except Exception as error:
                known = isinstance(error, FairwayError | OSError)
                self.failed(str(error) if known else f"{type(error).__name__}: {error}")
