"""Control groups (cgroup v2): nothing leaves a job's group, its memory and CPU are bounded, other jobs' GPUs are shut.

Each attempt gets a group below one that belongs to the scheduler. That is possible for root, and for a service to which
systemd has delegated a group. Limits need controllers, and these need systemd 254 or newer, which puts the scheduler
into a subgroup of its own (`DelegateSubgroup=`). Without a group, the processes of a job are found by searching.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import signal
import struct
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairway.runtime.processes import keeper

OWN = "scheduler"
"""The subgroup that systemd puts the scheduler into."""
TOKEN = "FAIRWAY_ATTEMPT"
"""The environment variable by which the processes of an attempt are known."""
_CONTROLLERS = ("memory", "cpu", "pids")
_PREFIX, _OURS = "attempt-", "fairway-"
_CPU_PERIOD_US = 100_000
_KILL_S = 5.0


@dataclass(frozen=True)
class HostLimits:
    """What a job may have of the machine: bytes of memory (0 is any amount), CPUs (0 is any number)."""

    memory_bytes: int = 0
    cpus: float = 0.0


class Containment:
    """The groups of attempts. `root` is None if there are none; `why` then says why."""

    def __init__(self, root: Path | None, controllers: Collection[str] = (), why: str = "") -> None:
        self.root = root
        self.controllers = frozenset(controllers)
        self.why = why

    def words(self) -> str:
        """What is contained, in words."""
        if self.root is None:
            return f"none: {self.why}. Processes that leave their job are searched for"
        limited = " and ".join(self.kept())
        return f"cgroup v2, with limits of {limited}" if limited else "cgroup v2, without limits"

    def kept(self) -> list[str]:
        """The limits of jobs that are kept."""
        return [what for what, need in (("memory", "memory"), ("cpus", "cpu")) if need in self.controllers]

    def close(self) -> None:
        """Remove the scheduler's own group, if we have made it and no attempt is left in it."""
        if self.root is not None and self.root.name.startswith(_OURS):
            with contextlib.suppress(OSError):
                self.root.rmdir()

    def make(self, token: str, limits: HostLimits, shut: Sequence[tuple[int, int]] = ()) -> Path | None:
        """A group for an attempt; None if there are none. `shut` are device numbers that it may not open."""
        if self.root is None:
            return None
        group = self.root / f"{_PREFIX}{token}"
        with contextlib.suppress(FileExistsError):
            group.mkdir(mode=0o755)
        if limits.memory_bytes and "memory" in self.controllers:
            (group / "memory.max").write_text(str(limits.memory_bytes), encoding="ascii")
            with contextlib.suppress(OSError):
                # Otherwise a job over its limit would go on in swap.
                (group / "memory.swap.max").write_text("0", encoding="ascii")
        if limits.cpus and "cpu" in self.controllers:
            quota = max(int(limits.cpus * _CPU_PERIOD_US), 1000)
            (group / "cpu.max").write_text(f"{quota} {_CPU_PERIOD_US}", encoding="ascii")
        if shut and os.geteuid() == 0:
            shut_devices(group, shut)
        return group


def found(folder: Path) -> Containment:
    """The groups that the scheduler of a state directory can make. Empty ones of earlier schedulers are removed."""
    mount = _mount()
    if mount is None:
        return Containment(None, why="there is no cgroup v2 file system")
    own = _own_group()
    if own.rpartition("/")[2] == OWN:
        root, controlled = mount / own.strip("/").rpartition("/")[0], True
    elif os.geteuid() == 0 and not own.endswith(".service"):
        name = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:12]
        root, controlled = mount / f"{_OURS}{name}", True
    else:
        # Controllers would keep systemd from putting the next scheduler into this group while jobs run.
        root, controlled = mount / own.strip("/"), False
    try:
        root.mkdir(exist_ok=True)
        trial = root / f"{_PREFIX}trial-{os.getpid()}"
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        return Containment(None, why=f"no control group is delegated to this user ({error.strerror})")
    if not (root / "cgroup.kill").exists() and root != mount:
        return Containment(None, why="this kernel's control groups cannot kill (Linux 5.14 can)")
    for old in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            old.rmdir()
    return Containment(root, _delegated(mount, root) if controlled else ())


def _delegated(mount: Path, root: Path) -> set[str]:
    """Let groups of attempts have controllers. Returns those that they have."""
    for folder in (mount, root) if root.parent == mount else (root,):
        for one in _CONTROLLERS:
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{one}", encoding="ascii")
    try:
        return set((root / "cgroup.subtree_control").read_text(encoding="ascii").split())
    except OSError:
        return set()


def _mount() -> Path | None:
    """Where cgroup v2 is mounted."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            if after.startswith("cgroup2 "):
                return Path(before.split()[4])
    return None


def _own_group() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                return line[3:]
    return "/"


def end(group: Path) -> int:
    """Kill all that is in a group, and remove it. Returns how many processes there were. `OSError` if some stay."""
    killed: set[str] = set()
    deadline_s = time.monotonic() + _KILL_S
    while True:
        try:
            left = (group / "cgroup.procs").read_text(encoding="ascii").split()
            if not left:
                group.rmdir()
                return len(killed)
            killed.update(left)
            (group / "cgroup.kill").write_text("1", encoding="ascii")
        except FileNotFoundError:
            return len(killed)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"processes {' '.join(left)} cannot be killed")
        time.sleep(0.005)


# --- without a group ------------------------------------------------------------------------------------------------


def keeper_of(directory: Path) -> tuple[int, int, str]:
    """The keeper of an attempt: pid, start and boot. For a file that makes no sense, a process that does not exist."""
    try:
        pid, started, *boot = json.loads((directory / "keeper.json").read_text(encoding="utf-8"))
        return int(pid), int(started), str(boot[0]) if boot else keeper.boot_id()
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return 2**31 - 1, -2, ""


def kill_strays(directory: Path, token: str, *, just_now: bool = False) -> int:
    """Kill what is left of an attempt whose keeper was killed. Returns how many processes there were.

    These are its ranks, processes with its token in their environment, and what they have started. `just_now`: its
    keeper has ended this moment, so the session ids of its ranks are not reused yet.
    """
    group = _group_of(directory)
    if group is not None:
        return end(group)
    killed: set[int] = set()
    for _ in range(100):
        strays = _strays(directory, token, just_now=just_now)
        if not strays:
            break
        # They are stopped first, so that none can start another process while the others are killed.
        for signo in (signal.SIGSTOP, signal.SIGKILL):
            for pid in strays:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signo)
        killed |= strays
        time.sleep(0.005)
    return len(killed)


def _group_of(directory: Path) -> Path | None:
    """The control group of an attempt, if it has one that still exists."""
    try:
        told = json.loads(keeper.read_own(directory / "launch.json"))
        group = Path(told["cgroup"])
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError, KeyError, TypeError):
        return None
    return group if group.is_dir() else None


def _strays(directory: Path, token: str, *, just_now: bool) -> set[int]:
    mark = f"{TOKEN}={token}".encode()
    ranks = _ranks(directory)
    found: set[int] = set()
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        fields = keeper.stat_fields(int(entry.name)) if entry.name.isdigit() else []
        if not fields or fields[0] in ("Z", "X"):
            continue
        pid, session, start = int(entry.name), int(fields[3]), int(fields[19])
        parents[pid] = int(fields[1])
        of_session = just_now and session in ranks and keeper.started_at(session) in (-1, ranks[session])
        if ranks.get(pid) == start or of_session or mark in _environment(pid):
            found.add(pid)
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return found


def _ranks(directory: Path) -> dict[int, int]:
    """The ranks of an attempt by pid, with their start; empty if they are of an earlier boot."""
    if keeper_of(directory)[2] != keeper.boot_id():
        return {}
    try:
        return dict(json.loads((directory / "ranks.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return {}


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


# --- devices ---------------------------------------------------------------------------------------------------------

_BPF_PROG_LOAD, _BPF_PROG_ATTACH = 5, 8
_CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE_HOOK = 15, 6
_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_ALLOW, _DENY = 1, 0


def shut_devices(group: Path, devices: Sequence[tuple[int, int]]) -> None:
    """Keep the processes of a group from opening some devices, by major and minor number. `OSError` if that fails."""
    program = device_program(devices)
    code, licence = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"GPL")
    load = struct.pack(
        "=IIQQ", _CGROUP_DEVICE_PROGRAM, len(program) // 8, ctypes.addressof(code), ctypes.addressof(licence)
    )
    loaded = _bpf(_BPF_PROG_LOAD, load)
    try:
        folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(_BPF_PROG_ATTACH, struct.pack("=IIII", folder, loaded, _CGROUP_DEVICE_HOOK, 0))
        finally:
            os.close(folder)
    finally:
        os.close(loaded)


def device_program(devices: Sequence[tuple[int, int]]) -> bytes:
    """The BPF program that answers "no" for these devices: it compares major (at 4) and minor (at 8) of each."""
    load_word, jump_unless_equal, move, leave = 0x61, 0x55, 0xB7, 0x95
    code = [_instruction(load_word, 2, 1, 4), _instruction(load_word, 3, 1, 8)]
    for major, minor in devices:
        code += [
            _instruction(jump_unless_equal, 2, 0, 3, major),
            _instruction(jump_unless_equal, 3, 0, 2, minor),
            _instruction(move, 0, 0, 0, _DENY),
            _instruction(leave, 0, 0, 0),
        ]
    return b"".join([*code, _instruction(move, 0, 0, 0, _ALLOW), _instruction(leave, 0, 0, 0)])


def _instruction(code: int, target: int, source: int, offset: int, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, source << 4 | target, offset, value)


def _bpf(command: int, about: bytes) -> int:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(f"devices cannot be shut on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(about.ljust(128, b"\0"), 128)
    done = libc.syscall(number, command, ctypes.byref(buffer), 128)
    if done < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(done)
