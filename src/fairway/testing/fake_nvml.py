"""A fake of the driver's library for tests: its GPUs are what a test says."""

# The names are those of the library that it stands for.
# ruff: noqa: N802

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class FakeError(Exception):
    """What the library raises, with the number of the error."""

    def __init__(self, text: str, value: int = 999) -> None:
        super().__init__(text)
        self.value = value


MISMATCH = FakeError("Driver/library version mismatch", 18)
NOT_LOADED = FakeError("Driver Not Loaded", 9)
NO_LIBRARY = FakeError("NVML Shared Library Not Found", 12)


@dataclass
class FakeGpu:
    """One GPU. `lost` makes everything about it fail. What is None is not known to the driver."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-0"
    memory_bytes: int = 141 << 30
    mig: int = 0
    remapped: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    ecc: int = 0
    lost: bool = False
    pids: list[int] = field(default_factory=list)
    memory: dict[int, int] = field(default_factory=dict)
    percent: int | None = 0
    used_bytes: int | None = None
    cores: int | None = 10496
    clock_mhz: int = 1860
    memory_mhz: int = 9751
    bus_bits: int = 384


class FakeNvml:
    """A stand-in for the module `pynvml`. While the driver has `trouble`, nothing answers."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, gpus: list[FakeGpu], *, trouble: FakeError | None = None) -> None:
        self.all = gpus
        self.trouble = trouble
        self.opened = 0
        self.xids: list[tuple[FakeGpu, int]] = []

    def nvmlInit(self) -> None:
        self._answer()
        self.opened += 1

    def nvmlShutdown(self) -> None:
        if not self.opened:
            raise FakeError("Uninitialized", 1)
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._answer()
        return len(self.all)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._sound(self.all[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        found = next((gpu for gpu in self.all if gpu.uuid == uuid), None)
        if found is None:
            raise FakeError("Not Found", 6)
        return self._sound(found)

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> bytes:
        return gpu.uuid.encode()

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:
        known = {} if gpu.used_bytes is None else {"free": gpu.memory_bytes - gpu.used_bytes}
        return SimpleNamespace(total=gpu.memory_bytes, **known)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        if gpu.mig < 0:
            raise FakeError("Not Supported")
        return gpu.mig, gpu.mig

    def nvmlDeviceGetRemappedRows(self, gpu: FakeGpu) -> tuple[int, int, int, int]:
        if gpu.remapped is None:
            raise FakeError("Not Supported")
        return gpu.remapped

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> int:
        if gpu.ecc < 0:
            raise FakeError("Not Supported")
        return gpu.ecc

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=gpu.memory.get(pid, 1 << 30)) for pid in gpu.pids]

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        if gpu.percent is None:
            raise FakeError("Not Supported")
        return SimpleNamespace(gpu=gpu.percent, memory=0)

    def nvmlDeviceGetNumGpuCores(self, gpu: FakeGpu) -> int:
        if gpu.cores is None:
            raise FakeError("Not Supported")
        return gpu.cores

    def nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, clock: int) -> int:
        return gpu.clock_mhz if clock == self.NVML_CLOCK_SM else gpu.memory_mhz

    def nvmlDeviceGetMemoryBusWidth(self, gpu: FakeGpu) -> int:
        return gpu.bus_bits

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, gpu: FakeGpu, kind: int, events: object) -> None:
        assert kind == self.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        if not self.xids:
            raise FakeError("Timeout")
        gpu, xid = self.xids.pop(0)
        return SimpleNamespace(device=gpu, eventData=xid)

    def _answer(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def _sound(self, gpu: FakeGpu) -> FakeGpu:
        self._answer()
        if gpu.lost:
            raise FakeError("GPU is lost")
        return gpu
