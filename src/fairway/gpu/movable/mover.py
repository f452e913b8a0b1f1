"""Moves this process's GPU memory out and back when the scheduler asks for it.

The request is a signal; the file `memory` in the attempt's directory says what is wanted. The handler runs in the main
thread between two instructions of Python, so never inside of a forward or a backward pass. It keeps the interpreter's
lock until the memory is back, so no other thread of Python can use the GPU meanwhile. The file `moves-PID` says that
this process can be asked, `moved-PID` how far it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .host_buffers import HostBuffers

REQUEST = signal.SIGRTMIN + 5
"""The signal. Few programs use signals of this kind."""
_LOOK_EVERY_US = 2000


class Mover:
    """Waits for requests. `library` is torch-memory-saver's, which was loaded first."""

    def __init__(self, attempt: Path, library: str) -> None:
        shared = attempt / "shared"
        self._wish = attempt / "memory"
        self._folder = shared if shared.is_dir() else attempt
        self._answer = self._folder / f"moved-{os.getpid()}"
        self._pid = os.getpid()
        # `PyDLL` keeps the interpreter's lock during a call.
        self._saver = ctypes.PyDLL(library)
        self._saver.tms_pause.argtypes = self._saver.tms_resume.argtypes = [ctypes.c_char_p]
        self._libc = ctypes.PyDLL(None)
        self._buffers = HostBuffers(library)
        self._pinning: threading.Thread | None = None

    def install(self) -> None:
        """Be ready for requests, and say so."""
        signal.signal(REQUEST, self._asked)
        signal.siginterrupt(REQUEST, False)
        with contextlib.suppress(OSError):
            (self._folder / f"moves-{self._pid}").touch()

    def _asked(self, signo: int, frame: object) -> None:
        if os.getpid() != self._pid:
            # A process that was forked from this one.
            return
        wish = self._wished()
        try:
            if wish.get("memory") == "pin":
                self._pin(int(wish.get("most_bytes", 0)))
            elif wish.get("memory") == "out":
                self._out(int(wish.get("most_bytes", 0)))
        except Exception as error:
            self._say(state="refused", bytes=0, seconds=0.0, problem=str(error) or type(error).__name__)

    def _out(self, most_bytes: int) -> None:
        """Move everything out, and wait until it is wanted back."""
        torch = _torch()
        if torch is None:
            self._say(state="out", bytes=0, seconds=0.0)
            return
        if torch.cuda.is_current_stream_capturing():
            self._say(state="busy", bytes=0, seconds=0.0)
            return
        size = sum(_reserved(torch).values())
        if size > most_bytes:
            self._say(state="refused", bytes=size, seconds=0.0, problem="its memory is more than the host may take")
            return
        if self._pinning is not None:
            self._buffers.enough = True
            self._pinning.join()
        self._say(state="moving", bytes=size, seconds=0.0)
        began_s = time.monotonic()
        for device in _reserved(torch):
            torch.cuda.synchronize(device)
        self._saver.tms_pause(None)
        self._say(state="out", bytes=size, seconds=time.monotonic() - began_s)
        while self._wished().get("memory") == "out":
            self._libc.usleep(_LOOK_EVERY_US)
        self._say(state="moving", bytes=size, seconds=0.0)
        began_s = time.monotonic()
        self._saver.tms_resume(None)
        self._say(state="in", bytes=size, seconds=time.monotonic() - began_s)
        if not self._wished().get("keep", True):
            self._buffers.drop()

    def _pin(self, most_bytes: int) -> None:
        """Get host memory ready beside the training: without it, the first time takes half a second per gigabyte."""
        torch = _torch()
        if torch is None or (self._pinning is not None and self._pinning.is_alive()):
            return
        sizes = [int(segment["total_size"]) for segment in torch.cuda.memory_snapshot()]
        device = torch.cuda.current_device()
        if sum(sizes) <= most_bytes:
            self._buffers.enough = False
            self._pinning = threading.Thread(target=self._buffers.pin, args=(sizes, device), daemon=True)
            self._pinning.start()

    def _wished(self) -> dict[str, Any]:
        try:
            wish = json.loads(self._wish.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return wish if isinstance(wish, dict) else {}

    def _say(self, **what: object) -> None:
        scratch = self._answer.with_name(f"{self._answer.name}.new")
        with contextlib.suppress(OSError):
            scratch.write_text(json.dumps(what), encoding="utf-8")
            scratch.replace(self._answer)


def _torch() -> Any:
    """PyTorch, if this process uses a GPU with it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized() else None


def _reserved(torch: Any) -> dict[int, int]:
    """The bytes that PyTorch has on each GPU."""
    held = {device: int(torch.cuda.memory_reserved(device)) for device in range(torch.cuda.device_count())}
    return {device: size for device, size in held.items() if size}
