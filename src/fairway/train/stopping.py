"""The request to stop: SIGTERM sets a flag and does nothing else; a training loop checks it between steps."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import warnings
from types import FrameType
from typing import Any

REQUEUE_CODE = 75
"""The exit code that says: my state is saved, run me again."""


class StopFlag:
    """Whether the scheduler has asked this process to stop."""

    def __init__(self) -> None:
        self.is_set = False
        self._before: Any = None
        self._installed = False

    def install(self) -> None:
        """Handle SIGTERM. Only the main thread can; a session in another thread is stopped by being killed."""
        if threading.current_thread() is not threading.main_thread():
            warnings.warn(
                "fairway: a session that is not made in the main thread cannot see SIGTERM",
                RuntimeWarning,
                stacklevel=3,
            )
            return
        self._before = signal.signal(signal.SIGTERM, self)
        self._installed = True
        atexit.register(self._be_deaf)

    def remove(self) -> None:
        """Restore the previous SIGTERM handler, unless it was replaced since."""
        current: Any = signal.getsignal(signal.SIGTERM)
        if self._installed and current is self:
            signal.signal(signal.SIGTERM, self._before if self._before is not None else signal.SIG_DFL)
        self._installed = False

    def _be_deaf(self) -> None:
        """Ignore SIGTERM from now on: Python drops handlers while it ends, and the signal would then end the process as
        if it had not done its work.
        """
        if self._installed and signal.getsignal(signal.SIGTERM) is self:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def __call__(self, signo: int, frame: FrameType | None) -> None:
        """The handler. It only sets a flag: a handler runs between any two instructions of the training."""
        self.is_set = True
        if isinstance(self._before, StopFlag):
            self._before(signo, frame)


def shield_worker(worker: int = 0) -> None:
    """Have a data loader's worker process ignore SIGTERM, which the scheduler sends to all processes of a job.

    Pass it as `worker_init_fn` of torch's DataLoader. Otherwise workers would end at once, and the present step with
    them. The signal still counts when the training process sends it, to end its workers.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_wait_for_parent, name="fairway-shield", daemon=True).start()


def _wait_for_parent() -> None:
    # Not a handler: Python's handlers do not learn who sent the signal.
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
