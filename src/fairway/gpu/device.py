"""The device that an executor computes on: a GPU with torch, or the CPU behind the same calls.

Work is launched on *streams*. A *mark* is a point in a stream: other streams and the host can wait for it. On the CPU
work is done when it is launched, so streams are nothing and marks are instants.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

Stream = Any
Mark = Any
Tensor = Any


class Device(Protocol):
    """What residency and the executor need of a device."""

    torch_name: str

    def new_stream(self) -> Stream:
        """A stream whose work runs beside that of others."""
        ...

    def stream(self) -> Stream:
        """The stream on which work is launched now."""
        ...

    def on(self, stream: Stream) -> contextlib.AbstractContextManager[object]:
        """Launch work on a stream."""
        ...

    def mark(self, stream: Stream) -> Mark:
        """Mark the end of what was launched on a stream so far."""
        ...

    def wait(self, stream: Stream, mark: Mark) -> None:
        """Let later work of a stream begin only when a mark is reached."""
        ...

    def reached(self, mark: Mark) -> bool:
        """Whether the device has come to a mark."""
        ...

    def finish(self, mark: Mark) -> None:
        """Wait until the device has come to a mark."""
        ...

    def seconds(self, begin: Mark, end: Mark) -> float:
        """The time between two marks that were reached."""
        ...

    def synchronize(self) -> None:
        """Wait for all work."""
        ...

    def host_buffer(self, size: int) -> Tensor:
        """Bytes of host memory that the device can copy from and to by itself."""
        ...

    def buffer(self, size: int) -> Tensor:
        """Bytes of device memory."""
        ...

    def drop(self, buffer: Tensor, *used_on: Stream) -> None:
        """Give back the memory of a buffer. Its tensors stay, and have no memory. `used_on` may still be using it."""
        ...

    def refill(self, buffer: Tensor, size: int) -> None:
        """Give a dropped buffer memory again, with any content."""
        ...

    def copy(self, source: Tensor, destination: Tensor) -> None:
        """Copy between the device and such host memory, on the present stream."""
        ...

    def capacity_bytes(self) -> int:
        """The memory that all jobs can have together."""
        ...

    def limit(self, most_bytes: int) -> None:
        """Let allocations of this process fail beyond this."""
        ...

    def allocated_bytes(self) -> int:
        """The memory that tensors have now. From now on the largest allocation is looked for."""
        ...

    def allocated_and_peak_bytes(self) -> tuple[int, int]:
        """The memory that tensors have now, and the most that they had since `allocated_bytes`."""
        ...

    def give_back(self) -> None:
        """Return memory that nothing uses to the system."""
        ...

    def random_state(self) -> Any:
        """The state of the random numbers of this process."""
        ...

    def set_random_state(self, state: Any) -> None:
        """Go on with random numbers from a state."""
        ...

    def is_lost(self) -> bool:
        """Whether no work can be done any more in this process."""
        ...


class TorchCuda:
    """One GPU, with torch."""

    def __init__(self, index: int = 0) -> None:
        import torch

        self._torch: Any = torch
        self._cuda: Any = torch.cuda
        self.torch_name = f"cuda:{index}"
        self._device = torch.device(self.torch_name)
        self._cuda.set_device(self._device)
        self._cuda.init()

    def new_stream(self) -> Stream:
        return self._cuda.Stream(self._device)

    def stream(self) -> Stream:
        return self._cuda.current_stream(self._device)

    def on(self, stream: Stream) -> contextlib.AbstractContextManager[object]:
        made: contextlib.AbstractContextManager[object] = self._cuda.stream(stream)
        return made

    def mark(self, stream: Stream) -> Mark:
        event = self._cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def wait(self, stream: Stream, mark: Mark) -> None:
        stream.wait_event(mark)

    def reached(self, mark: Mark) -> bool:
        return bool(mark.query())

    def finish(self, mark: Mark) -> None:
        mark.synchronize()

    def seconds(self, begin: Mark, end: Mark) -> float:
        return float(begin.elapsed_time(end)) / 1e3

    def synchronize(self) -> None:
        self._cuda.synchronize(self._device)

    def host_buffer(self, size: int) -> Tensor:
        return self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)

    def buffer(self, size: int) -> Tensor:
        return self._torch.empty(size, dtype=self._torch.uint8, device=self._device)

    def drop(self, buffer: Tensor, *used_on: Stream) -> None:
        for stream in used_on:
            buffer.record_stream(stream)
        buffer.untyped_storage().resize_(0)

    def refill(self, buffer: Tensor, size: int) -> None:
        buffer.untyped_storage().resize_(size)

    def copy(self, source: Tensor, destination: Tensor) -> None:
        destination.copy_(source, non_blocking=True)

    def capacity_bytes(self) -> int:
        # What torch has reserved already is for our jobs as well.
        return int(self._cuda.mem_get_info(self._device)[0]) + int(self._cuda.memory_reserved(self._device))

    def limit(self, most_bytes: int) -> None:
        whole = self._cuda.get_device_properties(self._device).total_memory
        self._cuda.set_per_process_memory_fraction(min(most_bytes / whole, 1.0), self._device)

    def allocated_bytes(self) -> int:
        self._cuda.reset_peak_memory_stats(self._device)
        return self.allocated_and_peak_bytes()[0]

    def allocated_and_peak_bytes(self) -> tuple[int, int]:
        # The flat form of these figures takes ten times as long to make.
        found = self._cuda.memory_stats_as_nested_dict(self._device).get("allocated_bytes")
        return (0, 0) if found is None else (int(found["all"]["current"]), int(found["all"]["peak"]))

    def give_back(self) -> None:
        gc.collect()
        self._cuda.empty_cache()

    def random_state(self) -> Any:
        return _host_random_state(), self._cuda.get_rng_state(self._device)

    def set_random_state(self, state: Any) -> None:
        host, device = state
        _set_host_random_state(host)
        self._cuda.set_rng_state(device, self._device)

    def is_lost(self) -> bool:
        try:
            self._cuda.synchronize(self._device)
        except Exception:  # whatever torch raises after a fatal error
            return True
        return False


class TorchCpu:
    """The CPU. It needs torch only for jobs that use torch.

    Tensors of torch are not counted here, so what jobs need is what they say.
    """

    torch_name = "cpu"

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self._capacity_bytes = capacity_bytes

    def new_stream(self) -> Stream:
        return None

    def stream(self) -> Stream:
        return None

    def on(self, stream: Stream) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def mark(self, stream: Stream) -> Mark:
        return time.perf_counter()

    def wait(self, stream: Stream, mark: Mark) -> None:
        return

    def reached(self, mark: Mark) -> bool:
        return True

    def finish(self, mark: Mark) -> None:
        return

    def seconds(self, begin: Mark, end: Mark) -> float:
        return float(end - begin)

    def synchronize(self) -> None:
        return

    def host_buffer(self, size: int) -> Tensor:
        return self.buffer(size)

    def buffer(self, size: int) -> Tensor:
        import torch

        return torch.empty(size, dtype=torch.uint8)

    def drop(self, buffer: Tensor, *used_on: Stream) -> None:
        buffer.untyped_storage().resize_(0)

    def refill(self, buffer: Tensor, size: int) -> None:
        buffer.untyped_storage().resize_(size)

    def copy(self, source: Tensor, destination: Tensor) -> None:
        destination.copy_(source)

    def capacity_bytes(self) -> int:
        return self._capacity_bytes

    def limit(self, most_bytes: int) -> None:
        self._capacity_bytes = min(self._capacity_bytes, most_bytes)

    def allocated_bytes(self) -> int:
        return 0

    def allocated_and_peak_bytes(self) -> tuple[int, int]:
        return 0, 0

    def give_back(self) -> None:
        gc.collect()

    def random_state(self) -> Any:
        return _host_random_state()

    def set_random_state(self, state: Any) -> None:
        _set_host_random_state(state)

    def is_lost(self) -> bool:
        return False


def find_device() -> Device:
    """The GPU that this process can see, else the CPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return TorchCpu()
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            return TorchCuda()
    return TorchCpu()


def _host_random_state() -> dict[str, Any]:
    """The state of the random numbers of Python, and of NumPy and torch if they are loaded."""
    found: dict[str, Any] = {"random": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        found["numpy"] = numpy.random.get_state()
    if torch is not None:
        found["torch"] = torch.get_rng_state()
    return found


def _set_host_random_state(state: Mapping[str, Any]) -> None:
    """Go on from a state. A library that was loaded since then begins as in a new process."""
    random.setstate(state["random"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.set_state(state.get("numpy") or numpy.random.RandomState(0).get_state())
    if torch is not None:
        torch.set_rng_state(state["torch"] if "torch" in state else torch.Generator().get_state())


class RandomNumbers:
    """The random numbers of each job, which are the same whoever runs beside it. A new job begins as a new process."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._first = device.random_state()
        self._states: dict[str, Any] = {}
        self._now = ""

    def use(self, job: str) -> None:
        """Draw the numbers of this job from now on."""
        if job != self._now:
            self._states[self._now] = self._device.random_state()
            self._now = job
            self._device.set_random_state(self._states.get(job, self._first))

    def state(self, job: str) -> Any:
        """Where the numbers of a job are."""
        return self._device.random_state() if job == self._now else self._states.get(job, self._first)

    def set(self, job: str, state: Any) -> None:
        """Go on with the numbers of a job from a state."""
        self.use(job)
        self._device.set_random_state(state)

    def forget(self, job: str) -> None:
        """A job is gone, or begins again."""
        self._states.pop(job, None)
        if job == self._now:
            self.use("")
            self._states.pop(job, None)
