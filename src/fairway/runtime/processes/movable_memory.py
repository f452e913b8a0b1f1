"""What this machine has for moving the memory of GPUs: a library for PyTorch, and a helper that talks to the driver."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from fairway.runtime.processes.site import GpuMemory

_ANSWER_S = 0.5
"""How long the driver has to say how much memory there is. Scheduling must not wait for a driver that hangs."""
_SOURCE = Path(__file__).resolve().parents[3]
PRELOAD = _SOURCE / "fairway" / "gpu" / "preload"
"""The folder that is put into the path of scripts whose memory is to be movable."""


def saver_folder() -> Path | None:
    """Where the libraries of torch-memory-saver are, if it is installed."""
    spec = importlib.util.find_spec("torch_memory_saver")
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve().parents[1]


def half_of_memory() -> int:
    """Half of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


class MovableMemory:
    """The ways to move memory on this machine. `ask` asks the driver about the memory of a GPU.

    The helper listens on a socket in `folder`. It ends with this process, after its last call.
    """

    def __init__(self, folder: Path, ask: Callable[[int], GpuMemory], saver: Path | None = None) -> None:
        self._ask = ask
        self._saver = saver
        self._socket = folder / "checkpointer.sock"
        self._log = folder / "checkpointer.log"
        self._helper: subprocess.Popen[bytes] | None = None
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="gpu-memory")
        self._answer: Future[GpuMemory] | None = None

    def movable(self, launch: Mapping[str, Any]) -> Mapping[str, Any]:
        """A launch whose processes can be moved off the GPU, if they may ever be suspended in place."""
        if not launch.get("suspends"):
            return launch
        self._start_helper()
        launch = {**launch, "checkpointer": str(self._socket)}
        if self._saver is None:
            return launch
        ranks = [{**rank, "env": _with_preload(rank["env"], self._saver)} for rank in launch["ranks"]]
        return {**launch, "ranks": ranks}

    def gpu_memory(self, gpu: int) -> GpuMemory | None:
        """The memory of a GPU now; None if the driver does not say in time."""
        if self._answer is not None and not self._answer.done():
            return None
        self._answer = self._asking.submit(self._ask, gpu)
        try:
            return self._answer.result(_ANSWER_S)
        except Exception:
            # Whatever is wrong with the driver, jobs are started as if nothing were known.
            return None

    def close(self) -> None:
        """End the helper once its calls are done."""
        self._asking.shutdown(wait=False)
        if self._helper is not None and self._helper.stdin is not None:
            self._helper.stdin.close()

    def _start_helper(self) -> None:
        """Start the helper, unless it runs. It gets ready while the job starts."""
        if self._helper is not None and self._helper.poll() is None:
            return
        with contextlib.suppress(OSError), _private_log(self._log) as log:
            self._helper = subprocess.Popen(
                [sys.executable, "-m", "fairway.gpu.checkpointer", str(self._socket)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(_SOURCE)},
                start_new_session=True,
            )


def _with_preload(env: Mapping[str, str], saver: Path) -> dict[str, str]:
    path = env.get("PYTHONPATH", "")
    places = f"{PRELOAD}{os.pathsep}{path}" if path else str(PRELOAD)
    return {**env, "PYTHONPATH": places, "FAIRWAY_MEMORY_SAVER": str(saver)}


def _private_log(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")
