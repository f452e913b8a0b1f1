"""Jobs that pretend to have memory on a device that only counts it."""

from __future__ import annotations

from typing import ClassVar

from fairway.gpu.device import TorchCpu
from fairway.gpu.lanes import MARGIN_BYTES


class OutOfMemoryError(RuntimeError):
    """What torch raises."""


class CountedDevice(TorchCpu):
    """A device of which jobs say what they take. More than it has is an error, and so is work after it was lost."""

    now: ClassVar[CountedDevice]

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes + MARGIN_BYTES)
        self._memory_bytes = capacity_bytes
        self.allocated = self.peak = 0
        self.lost = False
        CountedDevice.now = self

    def take(self, size: int) -> None:
        """Allocate, or give back."""
        if self.allocated + size > self._memory_bytes:
            raise OutOfMemoryError(f"tried to allocate {size} bytes")
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def allocated_bytes(self) -> int:
        self.peak = self.allocated
        return self.allocated

    def allocated_and_peak_bytes(self) -> tuple[int, int]:
        return self.allocated, self.peak

    def is_lost(self) -> bool:
        return self.lost


class Taking:
    """Takes memory when it is made, and in each step; `growth` more in each step than in the one before."""

    def __init__(self, persistent: str, ephemeral: str, steps: str, growth: str = "0", fatal_at: str = "0") -> None:
        self._device = CountedDevice.now
        self._persistent, self._ephemeral, self._growth = int(persistent), int(ephemeral), int(growth)
        self.steps, self._fatal_at, self._made = int(steps), int(fatal_at), 0
        self._device.take(self._persistent)

    def step(self) -> None:
        """Take memory for the step."""
        self._made += 1
        if self._made == self._fatal_at:
            self._device.lost = True
            raise RuntimeError("an illegal memory access was encountered")
        size = self._ephemeral + self._growth * self._made
        self._device.take(size)
        self._device.take(-size)

    def __del__(self) -> None:
        self._device.take(-self._persistent)


def taking(*arguments: str) -> Taking:
    return Taking(*arguments)
