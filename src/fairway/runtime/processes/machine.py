"""What this machine computes on: its GPUs, as the driver describes them, or virtual GPUs if it has no driver.

The driver's library is asked through `pynvml`, which is loaded when it is first needed and may be absent. It says which
NVIDIA GPUs there are, whether they are sound, and which foreign processes use them. Foreign processes are not touched:
a GPU that they compute on is blocked until they are gone.

A driver that does not answer, or answers with fewer GPUs than before, does not make the machine another one. Its GPUs
are those that it was known to have, and those that cannot be used are blocked until the driver has them again.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import pwd
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError
from fairway.core.hardware import CATALOGUE, known_gpu
from fairway.runtime.processes.keeper import stat_fields
from fairway.runtime.processes.site import GpuLoad, GpuMemory

_VENDOR_WORDS = {"nvidia", "tesla", "quadro", "geforce", "graphics", "generation", "gpu"}
_HARMLESS = "nvidia-cuda-mps"
"""How the names of the driver's helpers begin that hold a context on every GPU and compute nothing themselves.

The kernel keeps 15 characters of a name.
"""
_USERS_FAULT = frozenset((13, 31, 43, 45, 68, 109))
"""Errors (XIDs) that a program causes for itself; the GPU is sound afterwards."""
MOST_SLOTS = 4096
LOADED_FILES = Path("/proc/self/maps")
"""The files that this process has loaded, as the kernel lists them."""
_DELETED = " (deleted)"
_LIBRARY = "libnvidia-ml.so.1"
DRIVER_TRACES = ("/proc/driver/nvidia", "/dev/nvidiactl")
"""What is there while the NVIDIA driver is loaded, even if its library is missing."""
_NVIDIA_MAJOR = 195
"""The major number of the device files of NVIDIA GPUs."""
_REAL = "nvidia"
_LOST = "the driver has lost it"
AGAIN_S = 10.0
"""How long to wait before a driver that does not answer is asked again. The kernel logs each time that fails."""
_LIBRARY_MISSING = 12
_ADVICE = {
    4: "this user may not open /dev/nvidia*: check their owner and mode, or the container's devices",
    9: "its kernel module is not loaded: `modprobe nvidia`, or install the driver for this kernel",
    _LIBRARY_MISSING: "the driver is loaded, but its libnvidia-ml.so.1 is missing: install that",
    15: "a GPU is lost: `nvidia-smi` and `dmesg` say which; reboot",
    18: "the driver was upgraded: reboot, or reload the nvidia modules",
}
"""What to do about errors of the driver's library, by their numbers."""
_OTHER_ADVICE = "`nvidia-smi` and `dmesg` say more"
_UPGRADED = "the driver was upgraded since the scheduler started: reboot, or reload the nvidia modules"
_NO_DRIVER = "there is no NVIDIA driver here: install it, or give the container its GPUs"


class NvidiaGpu(NamedTuple):
    """One GPU. `problem` says why it cannot be used; empty if it can. `minor` is the number of its device file."""

    number: int
    uuid: str
    name: str
    memory_bytes: int
    speed: float
    problem: str = ""
    minor: int | None = None


class Nvml:
    """The driver's library. `trouble` says why the driver does not answer, and what to do; empty if it answers.

    `missing`: there is no NVIDIA driver at all. `device_numbers` has the major and minor numbers of the device files of
    all GPUs that the driver has listed, by UUID.
    """

    def __init__(self, library: Any) -> None:
        self.trouble = ""
        self.missing = False
        self.device_numbers: Mapping[str, tuple[int, int]] = {}
        self._lib = library
        self._events: Any = None
        self._broken: dict[str, str] = {}
        self._opened_s = -math.inf
        self._left = frozenset[str]()

    @staticmethod
    def opened() -> Nvml:
        """The library. If it cannot be used, `trouble` says why."""
        nvml = Nvml(None)
        nvml._open()
        return nvml

    def open_again(self) -> bool:
        """Ask a driver that does not answer once more, but not too often. Returns whether it answers now.

        Nothing that was known of its GPUs counts any more, since it may have been loaded again.
        """
        if time.monotonic() < self._opened_s + AGAIN_S:
            return False
        with contextlib.suppress(Exception):
            # As long as we have its device files open, the driver cannot be unloaded.
            self._lib.nvmlShutdown()
        self._open()
        return not self.trouble

    def _open(self) -> None:
        self._opened_s, self._events, self._broken = time.monotonic(), None, {}
        self.trouble, self.missing = "", False
        try:
            import pynvml

            self._lib = pynvml
            self._leave_old_library()
            pynvml.nvmlInit()
        except ImportError as error:
            self.missing = not _is_driver_loaded()
            self.trouble = f"{error}; install the Python package nvidia-ml-py"
        except Exception as error:
            number = int(getattr(error, "value", -1))
            self.missing = number == _LIBRARY_MISSING and not _is_driver_loaded()
            self.trouble = f"NVML: {error}; {_NO_DRIVER if self.missing else _ADVICE.get(number, _OTHER_ADVICE)}"
        self.look_at_library()
        self.gpus()

    def look_at_library(self) -> None:
        """Note if the library was upgraded: jobs that start now could not use the GPUs, even if we still can."""
        if _deleted_libraries() - self._left:
            self.trouble = _UPGRADED

    def _leave_old_library(self) -> None:
        """Use the library that an upgrade has put in the place of ours, because only that one fits the new driver.

        Ours stays loaded: another thread may be in the middle of a call.
        """
        for old in _deleted_libraries() - self._left:
            new = Path(old).with_name(_LIBRARY).resolve()
            if new.exists():
                # By its whole name: by the short one, the loader would find the library that is loaded.
                self._lib.nvmlLib = ctypes.CDLL(str(new))
                self._lib._nvmlGetFunctionPointer_cache.clear()
                self._left |= {old}

    def gpus(self) -> list[NvidiaGpu]:
        """All GPUs, including those that cannot be used."""
        if self.trouble:
            return []
        gpus = [self._gpu(index) for index in range(self._tried(self._lib.nvmlDeviceGetCount, default=0))]
        numbers = {gpu.uuid: (_NVIDIA_MAJOR, gpu.minor) for gpu in gpus if gpu.uuid and gpu.minor is not None}
        self.device_numbers = {**self.device_numbers, **numbers}
        return gpus

    def processes(self, uuid: str) -> list[int]:
        """The pids of the processes that compute on a GPU."""
        return [int(one.pid) for one in self._lib.nvmlDeviceGetComputeRunningProcesses(self._handle(uuid))]

    def memory(self, uuid: str) -> GpuMemory:
        """The memory of a GPU now."""
        told = self._lib.nvmlDeviceGetMemoryInfo(self._handle(uuid))
        return GpuMemory(int(told.free), int(told.total))

    def used_bytes(self, uuid: str) -> dict[int, int]:
        """The bytes that each process has on a GPU, by pid; without those of which the driver does not say it."""
        told = self._lib.nvmlDeviceGetComputeRunningProcesses(self._handle(uuid))
        return {int(one.pid): int(one.usedGpuMemory) for one in told if one.usedGpuMemory}

    def busy_percent(self, uuid: str) -> float | None:
        """The percentage of the last moments in which a GPU computed; None if it does not say."""
        try:
            return float(self._lib.nvmlDeviceGetUtilizationRates(self._handle(uuid)).gpu)
        except Exception:
            return None

    def load(self, uuid: str) -> GpuLoad:
        """How busy a GPU was lately, and how full it is."""
        percent, used = self.busy_percent(uuid), None
        with contextlib.suppress(Exception):
            memory = self.memory(uuid)
            used = memory.total - memory.free if 0 <= memory.free <= memory.total else None
        return GpuLoad(percent / 100.0 if percent is not None and 0 <= percent <= 100 else None, used)

    def problem(self, uuid: str) -> str:
        """What is wrong with a GPU now; empty if it is sound."""
        self._read_events()
        try:
            handle = self._handle(uuid)
            return self._broken.get(uuid) or self._problem(handle)
        except Exception as error:
            return f"{_LOST} ({error})"

    def _handle(self, uuid: str) -> Any:
        return self._lib.nvmlDeviceGetHandleByUUID(uuid)

    def _gpu(self, index: int) -> NvidiaGpu:
        try:
            handle = self._lib.nvmlDeviceGetHandleByIndex(index)
            name, uuid = _text(self._lib.nvmlDeviceGetName(handle)), _text(self._lib.nvmlDeviceGetUUID(handle))
            memory = int(self._lib.nvmlDeviceGetMemoryInfo(handle).total)
        except Exception as error:
            return NvidiaGpu(index, "", f"GPU {index}", 0, 1.0, f"{_LOST} ({error})")
        minor = self._tried(getattr(self._lib, "nvmlDeviceGetMinorNumber", None), handle, default=None)
        return NvidiaGpu(index, uuid, name, memory, self._speed(handle, name), self._problem(handle), minor)

    def _problem(self, handle: Any) -> str:
        lib = self._lib
        if self._tried(lib.nvmlDeviceGetMigMode, handle, default=(0, 0))[0]:
            return "it is divided into MIG instances, which Fairway does not use"
        rows = self._tried(getattr(lib, "nvmlDeviceGetRemappedRows", None), handle, default=None)
        if rows is not None:
            _, _, pending, failed = rows
            if failed:
                return "its memory has more faults than it can work around; it needs to be replaced"
            return "it has to be reset to work around a memory fault" if pending else ""
        faults = (handle, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, lib.NVML_VOLATILE_ECC)
        count = self._tried(lib.nvmlDeviceGetTotalEccErrors, *faults, default=0)
        return f"its memory has had {count} errors that could not be corrected since it was reset" if count else ""

    def _speed(self, handle: Any, name: str) -> float:
        """Training speed relative to a V100: from the catalogue, else from cores, clocks and memory bus."""
        known = known_gpu(type_name(name))
        if known is not None:
            return known.speed
        lib, v100 = self._lib, CATALOGUE["v100"]
        cores = self._tried(getattr(lib, "nvmlDeviceGetNumGpuCores", None), handle, default=0)
        clock_mhz = self._tried(lib.nvmlDeviceGetMaxClockInfo, handle, lib.NVML_CLOCK_SM, default=0)
        memory_mhz = self._tried(lib.nvmlDeviceGetMaxClockInfo, handle, lib.NVML_CLOCK_MEM, default=0)
        bus_bits = self._tried(getattr(lib, "nvmlDeviceGetMemoryBusWidth", None), handle, default=0)
        compute = 2 * cores * clock_mhz / 1e6 / v100.fp32_tflops
        bandwidth = 2 * memory_mhz * bus_bits / 8 / 1e3 / v100.memory_gb_per_s
        return round(math.sqrt(compute * bandwidth), 3) or 1.0

    def _read_events(self) -> None:
        """Take note of errors that the driver has reported since the last time."""
        try:
            if self._events is None:
                self._events = self._lib.nvmlEventSetCreate()
                for gpu in self.gpus():
                    with contextlib.suppress(Exception):
                        about = (self._handle(gpu.uuid), self._lib.nvmlEventTypeXidCriticalError, self._events)
                        self._lib.nvmlDeviceRegisterEvents(*about)
            while True:
                event = self._lib.nvmlEventSetWait_v2(self._events, 0)
                if int(event.eventData) not in _USERS_FAULT:
                    uuid = _text(self._lib.nvmlDeviceGetUUID(event.device))
                    self._broken[uuid] = f"the driver reported error {int(event.eventData)} (XID) for it"
        except Exception:
            # This is how it ends when there are no more events, and when the driver reports none at all.
            return

    def _tried(self, ask: Callable[..., Any] | None, *about: Any, default: Any) -> Any:
        """The library's answer; the default if this GPU or this driver does not know."""
        try:
            return default if ask is None else ask(*about)
        except Exception:
            return default


def _deleted_libraries() -> frozenset[str]:
    """The driver's libraries that this process has loaded and that an upgrade has deleted. New processes load another.

    If the same version was installed again, its file is there.
    """
    with contextlib.suppress(OSError):
        lines = LOADED_FILES.read_text(encoding="utf-8", errors="replace").splitlines()
        names = {line.split(maxsplit=5)[-1] for line in lines if "/libnvidia-ml.so" in line and line.endswith(_DELETED)}
        return frozenset(name for line in names if not Path(name := line.removesuffix(_DELETED)).exists())
    return frozenset()


def _is_driver_loaded() -> bool:
    return any(Path(trace).exists() for trace in DRIVER_TRACES)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def type_name(name: str) -> str:
    """A GPU's type in a word: its name in the catalogue, else its product name without the maker's words."""
    words = re.split(r"[\s\-_/]+", name.lower())
    joined = [*words, *(a + b for a, b in itertools.pairwise(words))]
    for known in sorted(CATALOGUE, key=len, reverse=True):
        # A letter may follow (A10G), a digit makes it another GPU (A100 is no A10).
        if any(re.fullmatch(rf"{known}[a-z]*", word) for word in joined) and "ada" not in words:
            return known
    kept = [word for word in words if word and word not in _VENDOR_WORDS and not re.fullmatch(r"[0-9]+gb", word)]
    return "-".join(kept) or "gpu"


def gpu_types(gpus: Sequence[NvidiaGpu]) -> list[GpuType]:
    """The type of each GPU. If GPUs of one name have different memory, the type says so: `a100@80g`."""
    sizes: dict[str, set[int]] = {}
    for gpu in gpus:
        sizes.setdefault(type_name(gpu.name), set()).add(_gib(gpu))
    made = []
    for gpu in gpus:
        name = type_name(gpu.name)
        known = known_gpu(name)
        label = name if len(sizes[name]) == 1 else f"{name}@{_gib(gpu)}g"
        memory = min(other.memory_bytes for other in gpus if (type_name(other.name), _gib(other)) == (name, _gib(gpu)))
        made.append(GpuType(label, memory, 0.0 if known is None else known.price_per_h, gpu.speed))
    return made


def _gib(gpu: NvidiaGpu) -> int:
    return round(gpu.memory_bytes / 1024**3)


def visible(gpus: Sequence[NvidiaGpu], environment: Mapping[str, str] = os.environ) -> list[NvidiaGpu]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves us, by number or by the beginning of their UUID."""
    told = environment.get("CUDA_VISIBLE_DEVICES")
    if told is None:
        return list(gpus)
    chosen = []
    for word in told.split(","):
        name = word.strip()
        found = [
            gpu for gpu in gpus if name and (str(gpu.number) == name or (len(name) > 4 and gpu.uuid.startswith(name)))
        ]
        if not found:
            # As CUDA does: what follows a name that it does not know is not visible either.
            break
        chosen += found[:1]
    return chosen


class ForeignProcesses:
    """Finds foreign processes on our GPUs, and GPUs that are out of order."""

    def __init__(self, nvml: Nvml, uuids: Sequence[str], ours: Callable[[], Mapping[int, Collection[int]]]) -> None:
        """`ours` gives the keepers (pids) of the live attempts on each GPU, by its number."""
        self._nvml = nvml
        self._uuids = uuids
        self._ours = ours

    def look(self) -> dict[int, str]:
        """The GPUs to block now, with the reason. A driver that answers for none of them is opened again."""
        nvml, gpus = self._nvml, range(len(self._uuids))
        nvml.look_at_library()
        blocked = {} if nvml.trouble else self._looked()
        silent = bool(nvml.trouble) or all(blocked.get(gpu, "").startswith(_LOST) for gpu in gpus)
        if silent and nvml.open_again():
            blocked = self._looked()
        return dict.fromkeys(gpus, nvml.trouble) if nvml.trouble else blocked

    def _looked(self) -> dict[int, str]:
        keepers = {gpu: set(pids) for gpu, pids in self._ours().items()}
        everyone = set().union(*keepers.values()) if keepers else set()
        blocked: dict[int, str] = {}
        for gpu, uuid in enumerate(self._uuids):
            why = self._nvml.problem(uuid)
            if not why:
                why = next(self._foreign(uuid, everyone, occupied=bool(keepers.get(gpu))), "")
            if why:
                blocked[gpu] = why
        return blocked

    def busy_percent(self, gpus: Collection[int]) -> float | None:
        """The highest percentage of time that any of these GPUs computed lately; None if that is not known."""
        found = [self._nvml.busy_percent(self._uuids[gpu]) for gpu in gpus if 0 <= gpu < len(self._uuids)]
        known = [percent for percent in found if percent is not None]
        return max(known) if known else None

    def memory(self, gpu: int) -> dict[int, int]:
        """The bytes that jobs have on a GPU, by the pids of their keepers."""
        keepers, used = set(self._ours().get(gpu, ())), dict[int, int]()
        for pid, size in self._nvml.used_bytes(self._uuids[gpu]).items():
            for keeper in keepers.intersection(_line(pid)):
                used[keeper] = used.get(keeper, 0) + size
        return used

    def _foreign(self, uuid: str, keepers: set[int], *, occupied: bool) -> Iterator[str]:
        try:
            pids = self._nvml.processes(uuid)
        except Exception as error:
            yield f"{_LOST} ({error})"
            return
        for pid in pids:
            parents = list(_line(pid))
            if not parents:
                # A process outside of our container has no name here. On a GPU with a job of ours, it counts as ours.
                if not occupied:
                    yield "a process outside of this container computes on it"
            elif not keepers & set(parents) and not _comm(pid).startswith(_HARMLESS):
                yield f"process {pid} ({_comm(pid)}) of {_owner(pid)} computes on it"


def _line(pid: int) -> Iterator[int]:
    """A process and its ancestors; nothing if it does not exist here."""
    for _ in range(1000):
        fields = stat_fields(pid)
        if not fields or pid <= 1:
            return
        yield pid
        pid = int(fields[1])


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "?"


def _owner(pid: int) -> str:
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return "somebody"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


@dataclass(frozen=True)
class Machine:
    """A cluster on this machine: one node for each GPU type.

    `devices` names its GPUs for CUDA, by their numbers here; None if they are virtual. `left_out` says which GPUs are
    not used and why. `nvml` answers questions about real GPUs.
    """

    cluster: Cluster
    devices: Sequence[str] | None
    left_out: tuple[str, ...] = ()
    nvml: Nvml | None = None

    @property
    def text(self) -> str:
        """The machine in a few words."""
        kinds = [f"{node.gpus} × {node.gpu_type}" for node in self.cluster.nodes]
        virtual = " (virtual GPUs, on the CPU)" if self.devices is None else ""
        return ", ".join(kinds) + virtual


def virtual_machine(slots: int) -> Machine:
    """Virtual GPUs on the CPU. Everything works as with GPUs, and all slots are interchangeable."""
    if not 1 <= slots <= MOST_SLOTS:
        raise InputError(f"there can be 1 to {MOST_SLOTS} virtual GPUs, not {slots}")
    node = Node(_host(), "cpu", slots)
    return Machine(Cluster.of([node], [GpuType("cpu", 0, 0.0, 1.0)], f"cpu:{slots}"), None)


def typed_machine(words: str) -> Machine:
    """Virtual GPUs that stand for those of some types, such as `v100:2,k80:4`: a node for each type."""
    counts: dict[str, int] = {}
    for word in words.split(","):
        name, _, count = word.partition(":")
        if not (name and count.isascii() and count.isdigit() and 0 < len(count) < 6 and int(count)):
            raise InputError(f"--gpus {words!r}: {word!r} is not a GPU type with a number, as in 'v100:2,k80:4'")
        kind = GpuType.named(name).name
        if kind in counts:
            raise InputError(f"--gpus {words!r}: {kind} is there twice")
        counts[kind] = int(count)
    if sum(counts.values()) > MOST_SLOTS:
        raise InputError(f"there can be 1 to {MOST_SLOTS} virtual GPUs, not {sum(counts.values())}")
    host = _host()
    nodes = [Node(host if len(counts) == 1 else f"{host}-{name}", name, count) for name, count in counts.items()]
    return Machine(Cluster.of(nodes, text=words), None)


def nvidia_machine(
    nvml: Nvml, wanted: Sequence[int] | None = None, environment: Mapping[str, str] = os.environ
) -> Machine | None:
    """The machine's GPUs, or those with the numbers `wanted`; None if no GPU can be used."""
    known = nvml.gpus()
    for index in wanted or ():
        if index not in {gpu.number for gpu in known}:
            raise InputError(f"there is no GPU {index} here; there are {len(known)}")
    chosen = visible(known, environment) if wanted is None else [gpu for gpu in known if gpu.number in wanted]
    sound = [gpu for gpu in chosen if not gpu.problem]
    left_out = tuple(_told(gpu) for gpu in chosen if gpu.problem)
    if not sound:
        return None
    by_type: dict[str, list[NvidiaGpu]] = {}
    types: dict[str, GpuType] = {}
    for gpu, kind in zip(sound, gpu_types(sound), strict=True):
        by_type.setdefault(kind.name, []).append(gpu)
        types[kind.name] = kind
    host = _host()
    nodes = [Node(host if len(by_type) == 1 else f"{host}-{name}", name, len(them)) for name, them in by_type.items()]
    text = ",".join(f"{name}:{len(them)}" for name, them in by_type.items())
    devices = [gpu.uuid for them in by_type.values() for gpu in them]
    return Machine(Cluster.of(nodes, types.values(), text), devices, left_out, nvml)


class KnownGpus(NamedTuple):
    """The real GPUs that this machine was last found to have. `wish` is what chose them then: `--gpus` and
    `CUDA_VISIBLE_DEVICES`."""

    wish: tuple[str, str | None]
    cluster: Cluster
    devices: Sequence[str]

    def plain(self) -> list[Any]:
        """The same for the journal."""
        nodes = [[node.name, node.gpu_type, node.gpus] for node in self.cluster.nodes]
        types = [[kind.name, kind.memory_bytes, kind.price_per_h, kind.speed] for kind in self.cluster.types]
        return [list(self.wish), nodes, types, list(self.devices)]

    @staticmethod
    def of_plain(plain: Any) -> KnownGpus | None:
        """What the journal has; None if it has nothing, or nonsense."""
        try:
            (words, chosen), nodes, types, devices = plain
            cluster = Cluster.of([Node(*node) for node in nodes], [GpuType(*kind) for kind in types])
        except (TypeError, ValueError, InputError):
            return None
        return KnownGpus((words, chosen), cluster, devices) if len(devices) == cluster.gpu_count else None


def wish_of(gpus: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str | None]:
    """What chooses among the real GPUs of this machine."""
    return _REAL if gpus == "auto" else gpus, environment.get("CUDA_VISIBLE_DEVICES")


def found_machine(
    gpus: str = "auto", environment: Mapping[str, str] = os.environ, known: KnownGpus | None = None
) -> Machine:
    """The machine that `gpus` asks for.

    `auto` takes its GPUs, or one virtual GPU per core if it has no NVIDIA driver and no GPU was ever known. `nvidia`
    takes its GPUs and nothing else, `nvidia:0,2` some of them. A number makes that many virtual GPUs, and
    `v100:2,k80:4` some of these types. `environment` says which GPUs are visible.

    If the same was asked for when the `known` GPUs were found, the machine has all of them, also those that the driver
    does not list now: they are there to be blocked. `InputError` if no GPU can be used, and nobody knows which there
    should be.
    """
    if gpus == "auto" or gpus == _REAL or gpus.startswith(f"{_REAL}:"):
        wanted, nvml = _numbers(gpus), Nvml.opened()
        if known is not None and known.wish == wish_of(gpus, environment) and _lacks(nvml, known):
            return Machine(known.cluster, known.devices, nvml=nvml)
        machine = None if nvml.trouble else nvidia_machine(nvml, wanted, environment)
        if machine is not None:
            return machine
        if gpus == "auto" and nvml.missing and known is None:
            return virtual_machine(min(len(os.sched_getaffinity(0)), MOST_SLOTS))
        raise InputError(_no_gpu(gpus, nvml, environment))
    if ":" in gpus:
        return typed_machine(gpus)
    if not (gpus.isascii() and gpus.isdigit() and len(gpus) < 10):
        raise InputError(f"--gpus {gpus!r} is neither a number, nor 'auto', 'nvidia', 'nvidia:0,2' or 'v100:2,k80:4'")
    return virtual_machine(int(gpus))


def _lacks(nvml: Nvml, known: KnownGpus) -> bool:
    """Whether the driver lacks known GPUs, or cannot use them, and has no others instead.

    If GPUs were chosen by numbers, a new one may be the neighbour of one that is missing.
    """
    sound = {gpu.uuid for gpu in nvml.gpus() if not gpu.problem}
    replaced = known.wish == (_REAL, None) and not sound.issubset(known.devices)
    return not replaced and not sound.issuperset(known.devices)


def _no_gpu(gpus: str, nvml: Nvml, environment: Mapping[str, str]) -> str:
    """Why none of the GPUs that `gpus` asks for can be used, and what else there is."""
    listed, chosen = nvml.gpus(), environment.get("CUDA_VISIBLE_DEVICES")
    why = [nvml.trouble] if nvml.trouble else [_told(gpu) for gpu in listed if gpu.problem]
    if listed and not why and chosen is not None:
        why = [f"CUDA_VISIBLE_DEVICES={chosen} hides all {len(listed)}"]
    text = f"--gpus {gpus}: no NVIDIA GPU can be used here: {'; '.join(why) or 'the driver lists none'}"
    return f"{text}. `--gpus N` makes N virtual GPUs on the CPU"


def _numbers(gpus: str) -> list[int] | None:
    told = gpus.partition(":")[2]
    if not told:
        return None
    words = told.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise InputError(f"--gpus {gpus!r}: GPUs are numbers with commas between them, as in 'nvidia:0,2'")
    return [int(word) for word in words]


def _told(gpu: NvidiaGpu) -> str:
    return f"GPU {gpu.number} ({gpu.name}): {gpu.problem}"


def _host() -> str:
    return socket.gethostname() or "localhost"
