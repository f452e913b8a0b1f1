"""Pinned host memory that is kept from one move to the next, and can be got ready before the first one.

torch-memory-saver asks for a pinned buffer for each piece of GPU memory when it moves it out, and gives it back when it
has moved it in. Pinning takes half a second per gigabyte. So its calls are directed to this pool, which keeps buffers
by size. The calls only come from within a move, in the thread that has the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from typing import Any

from .relocation import redirect

_PORTABLE = 1
_PIECE = 64 << 20
_THREADS = 4


class HostBuffers:
    """A pool of pinned buffers. `enough` ends a call of `pin` early."""

    def __init__(self, library: str) -> None:
        self.enough = False
        self._free: dict[int, list[int]] = {}
        self._memory: dict[int, mmap.mmap] = {}
        self._cuda: Any = ctypes.CDLL(None)
        pointer = ctypes.c_void_p
        self._cuda.cudaHostRegister.argtypes = [pointer, ctypes.c_size_t, ctypes.c_uint]
        self._calls = (
            ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(pointer), ctypes.c_size_t)(self._take),
            ctypes.PYFUNCTYPE(ctypes.c_int, pointer)(self._give),
        )
        take, give = (ctypes.cast(call, pointer).value or 0 for call in self._calls)
        redirect(library, {"cudaMallocHost": take, "cudaFreeHost": give})

    def pin(self, sizes: list[int], device: int) -> None:
        """Have a buffer ready for each of these sizes."""
        self._cuda.cudaSetDevice(device)
        spare = {size: len(free) for size, free in self._free.items()}
        for size in sorted(sizes):
            if self.enough:
                return
            if spare.get(size, 0):
                spare[size] -= 1
            else:
                made = self._make(size)
                if made:
                    self._free.setdefault(size, []).append(made)

    def drop(self) -> None:
        """Give all buffers that are not in use back to the machine."""
        for address in [address for free in self._free.values() for address in free]:
            self._cuda.cudaHostUnregister(ctypes.c_void_p(address))
            self._memory.pop(address).close()
        self._free.clear()

    def _take(self, out: Any, size: int) -> int:
        free = self._free.get(size)
        address = free.pop() if free else self._make(size)
        if not address:
            return 2  # cudaErrorMemoryAllocation
        out[0] = address
        return 0

    def _give(self, address: int | None) -> int:
        memory = self._memory.get(address or 0)
        if memory is not None and address is not None:
            self._free.setdefault(len(memory), []).append(address)
        return 0

    def _make(self, size: int) -> int:
        """A new buffer; 0 if there is no room. Its pages are made by several threads, which is what takes long."""
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError):
            return 0
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        step = max(_PIECE, -(-size // _THREADS))
        parts = [(address + at, min(step, size - at)) for at in range(0, size, step)]
        threads = [threading.Thread(target=ctypes.memset, args=(at, 0, length)) for at, length in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._cuda.cudaHostRegister(address, size, _PORTABLE):
            return 0
        self._memory[address] = memory
        return address
