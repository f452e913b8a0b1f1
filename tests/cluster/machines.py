"""One host cut into several machines, with a real Ray over them.

As root each machine has its own network, process ids, host name and temporary directory, so that its power and its
cable can be cut. Without root the machines are only raylets with different names; `apart` says which it is. The first
machine is this host itself: the control store runs there, and so does what the test starts.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

START_TRIES = 3
START_S = 90.0
"""How often Ray's start on a machine is tried, and how long it may take. Its raylet gives up if the helpers that it
starts are late, as they are on a busy machine. Only this is tried again, and no test."""
AGENT_MS = 60_000
"""How long a raylet waits for its helpers, where it can be told."""
WAIT_S = 120.0
"""How long a test waits for something that takes seconds at most where nobody else computes."""
FAST_CHECKS = {"initial_delay_ms": 1000, "period_ms": 500, "timeout_ms": 1000, "failure_threshold": 3}
"""With these a raylet that was killed is dead to Ray after 1.5 s, a frozen one after 4.5 s."""
RECONNECT_S = 5
"""How long parts of Ray go on without the control store; 60 s unless they are told."""
MARK = "FAIRWAY_TEST_MACHINE"
"""In the environment of everything that a raylet starts: the folder of the machines and the name of this one."""


def wait_until(
    true: Callable[[], Any], what: str, seconds: float = WAIT_S, about: Callable[[], str] = lambda: ""
) -> Any:
    """Wait until something is true, and return it. `about` says more if it does not come true."""
    end_s = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end_s, f"waited {seconds:g} s in vain for {what}; {about()}"
        time.sleep(0.02)
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def read_proc(pid: int, what: str) -> str:
    """A file of a process; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/{what}").read_text(errors="replace")
    except OSError:
        return ""


def lives(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    return read_proc(pid, "stat").rpartition(") ")[2][:1] not in ("", "Z", "X")


def ppid_of(pid: int) -> int:
    return int((read_proc(pid, "stat").rpartition(") ")[2].split() or ["", "0"])[1])


def rss_bytes(pid: int) -> int:
    """The resident memory of a process."""
    for line in read_proc(pid, "status").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def kill(pid: int, how: int = signal.SIGKILL) -> None:
    """Send a signal to one process, if it is there. 0 is no process; to the kernel it would be this whole group."""
    if pid > 0:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


@functools.cache
def may_cut() -> bool:
    """Whether this user may have networks and process ids of its own."""
    if os.geteuid() != 0 or os.environ.get("FAIRWAY_TEST_APART") == "no":
        return False
    if not all(shutil.which(tool) for tool in ("ip", "unshare", "nsenter")):
        return False
    tried = subprocess.run(
        "unshare --net --pid --uts --mount --fork --mount-proc ip link add v0 type veth peer name v1 && "
        "unshare --net sh -c 'ip link add b0 type bridge'",
        shell=True,
        capture_output=True,
    )
    return tried.returncode == 0


class Machine:
    """One machine: a raylet, what it has started, and what these have started."""

    def __init__(self, machines: Machines, number: int) -> None:
        self.machines = machines
        self.number = number
        self.name = f"n{number}"
        self.address = machines.address_of(number)
        self.more_env: dict[str, str] = {}
        """What a test adds to the environment of the raylet when it next starts."""
        self.init: subprocess.Popen[bytes] | None = None
        """The first process of the machine, if it has process ids of its own. When it ends, everything there does."""

    @property
    def mark(self) -> str:
        return f"{self.machines.folder}:{self.name}"

    @property
    def apart(self) -> bool:
        """Whether this machine has process ids and a network of its own."""
        return self.machines.apart and self.number > 0

    def boot(self) -> None:
        """Power on: a network, a host name and process ids, and nothing that runs."""
        if not self.apart:
            return
        self.init = subprocess.Popen(
            [
                *("unshare", "--net", "--pid", "--uts", "--mount", "--fork", "--kill-child", "--mount-proc"),
                *("bash", "-c", f"hostname {self.name}; sleep infinity & while :; do wait; done"),
            ],
            env=self.env(),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: self._inner() and read_proc(self._inner(), "comm") == "bash\n", f"{self.name} to boot")
        inner, ours, theirs = str(self._inner()), self._cable, f"{self._cable}p"
        own_temp = self.machines.folder / self.name
        own_temp.mkdir(exist_ok=True)
        _run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", inner)
        _run("ip", "link", "set", ours, "master", self.machines.bridge, "up")
        self.enter("ip", "link", "set", "lo", "up")
        self.enter("ip", "link", "set", theirs, "name", "eth0")
        self.enter("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.enter("ip", "link", "set", "eth0", "up")
        self.enter("mount", "--bind", str(own_temp), str(self.machines.temp))
        self.enter("mount", "-t", "tmpfs", "shm", "/dev/shm")

    @property
    def _cable(self) -> str:
        return f"{self.machines.bridge}-{self.number}"

    def _inner(self) -> int:
        """This host's number of the first process inside, 0 if there is none."""
        if self.init is None:
            return 0
        told = read_proc(self.init.pid, f"task/{self.init.pid}/children").split()
        return int(told[0]) if told else 0

    def enter(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine."""
        inside = ["nsenter", "--target", str(self._inner()), "--all", "--"] if self.apart else []
        options = {"capture_output": True, "text": True, "check": True, "env": self.env()} | options
        return subprocess.run([*inside, *words], **options)

    def env(self) -> dict[str, str]:
        """The environment of the raylet, and of what is started by hand on this machine."""
        return {**self.machines.env(), **self.more_env, MARK: self.mark}

    def start_ray(self) -> None:
        """Start the raylet, and the control store on the first machine."""
        about = [
            *("--node-name", self.name, "--node-ip-address", self.address, "--disable-usage-stats"),
            *("--num-cpus", "1", "--object-store-memory", "80000000"),
            *("--min-worker-port", "0", "--max-worker-port", "0", "--labels", f"fairway-test={self.name}"),
        ]
        if self.machines.gpus:
            about += ["--num-gpus", str(self.machines.gpus)]
        if self.number == 0 and not self.control_store:
            about += ["--head", "--port", str(self.machines.port), "--include-dashboard=false"]
            about += ["--temp-dir", str(self.machines.temp)]
        else:
            about += ["--address", self.machines.gcs_address]
        for _ in range(START_TRIES):
            log = (self.machines.folder / f"{self.name}.log").open("ab")
            try:
                self.enter(
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", *about),
                    capture_output=False,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd=self.machines.temp,
                    timeout=START_S,
                )
                if self.raylet:
                    return
            except subprocess.SubprocessError:
                pass
            self.stop_ray(control_store=False)
        told = (self.machines.folder / f"{self.name}.log").read_text(errors="replace")
        raise RuntimeError(f"Ray does not start on {self.name}: {told[-600:]}")

    @property
    def pids(self) -> list[int]:
        """All processes of the machine, also those that Ray does not know."""
        if self.apart:
            here = _pid_space(self._inner())
            return [pid for pid in all_pids() if _pid_space(pid) == here] if here else []
        mark = f"{MARK}={self.mark}"
        marked = {pid for pid in all_pids() if mark in read_proc(pid, "environ").split("\0")}
        return sorted(marked | _below(marked))

    @property
    def ray_pids(self) -> list[int]:
        """Ray's processes on the machine, those that `ray stop` would end."""
        below = {pid for pid in self.pids if "/ray/" in read_proc(pid, "cmdline")}
        raylet = self.raylet
        workers = {pid for pid in self.pids if raylet and ppid_of(pid) == raylet}
        return sorted(below | workers)

    @property
    def raylet(self) -> int:
        """The pid of the raylet, 0 if none runs."""
        return self._named("raylet")

    @property
    def control_store(self) -> int:
        """The pid of the control store, 0 if none runs here."""
        return self._named("gcs_server")

    def _named(self, comm: str) -> int:
        for pid in self.pids:
            if read_proc(pid, "comm") == f"{comm}\n" and lives(pid):
                return pid
        return 0

    @property
    def workers(self) -> dict[int, str]:
        """The processes of actors on this machine, with what they call themselves (`ray::Hands`)."""
        raylet = self.raylet
        named = {pid: read_proc(pid, "cmdline").split("\0")[0] for pid in self.pids if ppid_of(pid) == raylet}
        agents = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::IDLE")
        return {pid: name for pid, name in named.items() if name.startswith("ray::") and name not in agents}

    def freeze(self, *, all_of_it: bool = False) -> None:
        """Stop the raylet and what it has started; `all_of_it`: everything on the machine stands still."""
        for pid in self.pids if all_of_it else self.ray_pids:
            if not self.apart or pid != self._inner():
                kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.pids:
            kill(pid, signal.SIGCONT)

    def kill_raylet(self) -> None:
        """End the raylet without a word. Its actors end as well; keepers are nobody's child."""
        kill(self.raylet)
        wait_until(lambda: not self.raylet, f"the raylet of {self.name} to be gone")

    def stop_ray(self, *, control_store: bool = True) -> None:
        """End what Ray has on the machine, and leave the rest. The control store may be spared, with its helpers."""
        spared = () if control_store else ("gcs_server", "/monitor.py", "/dashboard.py")

        def there() -> list[int]:
            told = {pid: read_proc(pid, "cmdline") for pid in self.ray_pids if lives(pid)}
            return [pid for pid, words in told.items() if not any(word in words for word in spared)]

        for pid in there():
            kill(pid)
        wait_until(lambda: not there(), f"Ray on {self.name} to be gone")

    def restart_ray(self) -> None:
        """A new raylet on a machine that goes on."""
        self.stop_ray(control_store=False)
        self.start_ray()

    def power_off(self) -> None:
        """Everything on the machine is gone at once."""
        assert self.number > 0, "this host cannot be switched off"
        if self.apart:
            if self.init is not None:
                kill(self._inner())
                self.init.wait()
                subprocess.run(["ip", "link", "delete", self._cable], capture_output=True)
            return
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.pids:
                kill(pid, how)
        wait_until(lambda: not any(map(lives, self.pids)), f"{self.name} to be off")

    def power_on(self) -> None:
        self.boot()
        self.start_ray()

    def cut(self) -> None:
        """Cut the machine's cable. Everything on it runs on, and its files are still shared."""
        assert self.apart, "a machine that is not apart has no cable"
        _run("ip", "link", "set", self._cable, "down")

    def mend(self) -> None:
        _run("ip", "link", "set", self._cable, "up")


class Machines:
    """Several machines with one Ray, in a folder with a short name."""

    def __init__(
        self, number: int, *, gpus: int = 0, apart: bool | None = None, ray: Mapping[str, object] | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fw", dir="/tmp"))
        self.shared = self.folder / "shared"
        self.temp = self.folder / "ray"
        self.shared.mkdir()
        self.temp.mkdir()
        self.number = number
        self.gpus = gpus
        self.apart = may_cut() if apart is None else apart
        self.bridge = bridge_of(self.folder)
        self.subnet = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self.port = free_port()
        self.token = secrets.token_hex(16)
        self.settings = {f"health_check_{key}": value for key, value in FAST_CHECKS.items()} | {
            "gcs_rpc_server_reconnect_timeout_s": RECONNECT_S,
            "agent_register_timeout_ms": AGENT_MS,
            **(ray or {}),
        }
        self._all = [Machine(self, one) for one in range(number)]
        # It sees the end of this process, and cleans up if that was killed.
        self._cleaner = subprocess.Popen(
            [sys.executable, __file__, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
        )

    def __getitem__(self, number: int) -> Machine:
        return self._all[number]

    def __iter__(self) -> Iterator[Machine]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def address_of(self, number: int) -> str:
        return f"{self.subnet}.{number + 1}" if self.apart else "127.0.0.1"

    @property
    def gcs_address(self) -> str:
        return f"{self.address_of(0)}:{self.port}"

    def env(self) -> dict[str, str]:
        """What a process needs that speaks with this Ray."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("RAY_", "FAIRWAY_"))}
        return {
            **kept,
            **{f"RAY_{name}": str(value) for name, value in self.settings.items()},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "RAY_enable_metrics_collection": "0",
        }

    def start(self) -> None:
        """Boot all machines and start Ray on them, on all but the first at the same time."""
        try:
            if self.apart:
                _run("ip", "link", "add", self.bridge, "type", "bridge")
                _run("ip", "address", "add", f"{self.address_of(0)}/24", "dev", self.bridge)
                _run("ip", "link", "set", self.bridge, "up")
            for one in self:
                one.boot()
            self.start_ray()
        except BaseException:
            self.close()
            raise

    def start_ray(self) -> None:
        """Start Ray on all machines: the first one's, then the others' one after the other."""
        for one in self:
            one.start_ray()

    def stop_ray(self) -> None:
        for one in self:
            one.stop_ray()

    def add(self) -> Machine:
        """A machine that joins."""
        one = Machine(self, len(self))
        self._all.append(one)
        one.power_on()
        return one

    def repair(self) -> None:
        """Everything as at the start, whatever a test has done: as many machines, on, with cables, and Ray on them."""
        self._all, added = self._all[: self.number], self._all[self.number :]
        for one in added:
            one.power_off()
        for one in self:
            one.more_env.clear()
            one.thaw()
            if one.apart and (one.init is None or one.init.poll() is not None):
                one.boot()
            elif one.apart:
                one.mend()
        self.repair_ray()
        self.forget_actors()

    def repair_ray(self) -> None:
        """Ray on all machines, where it is not."""
        if not self[0].control_store or not self[0].raylet:
            self.stop_ray()
            self.start_ray()
        for one in self:
            if not one.raylet:
                one.restart_ray()
        wait_until(lambda: len(self.nodes()) == len(self), "all nodes to be alive")

    def forget_actors(self) -> None:
        """End all actors: those of an earlier test have nothing to say in the next one."""
        ask_ray(
            self,
            "from ray.util import list_named_actors\n"
            "said = list_named_actors(all_namespaces=True)\n"
            "for one in said:\n    ray.kill(ray.get_actor(one['name'], one['namespace']), no_restart=True)",
        )

    def nodes(self) -> dict[str, str]:
        """The ids of the nodes that live in the eyes of Ray, by name."""
        told = ask_ray(self, "said = [(one['NodeName'], one['NodeID']) for one in ray.nodes() if one['Alive']]")
        return dict(told)

    @property
    def memory_bytes(self) -> int:
        """Resident memory of everything on all machines."""
        return sum(rss_bytes(pid) for one in self for pid in one.pids)

    def strays(self) -> list[int]:
        """All processes that have to do with these machines."""
        return strays(self.folder)

    def close(self) -> None:
        """Leave nothing behind: no process, network or file."""
        for one in self._all[1:]:
            one.power_off()
        clean(self.folder)
        self._cleaner.communicate()


def strays(folder: Path) -> list[int]:
    """The processes that have to do with a folder: by environment, command or current directory.

    Those of Ray that call themselves something else have overwritten their environment.
    """
    found = [pid for pid in all_pids() if _names(pid, str(folder)) and lives(pid)]
    return [pid for pid in found if pid != os.getpid() and "machines.py" not in read_proc(pid, "cmdline")]


def _names(pid: int, path: str) -> bool:
    try:
        where = str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        where = ""
    return path in read_proc(pid, "environ") + read_proc(pid, "cmdline") + where


def clean(folder: Path) -> None:
    """End everything that has to do with the machines of a folder, and delete it."""
    for pid in strays(folder):
        kill(pid)
    wait_until(lambda: not strays(folder), "everything to be gone")
    if may_cut():
        for link in Path("/sys/class/net").glob(f"{bridge_of(folder)}*"):
            subprocess.run(["ip", "link", "delete", link.name], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def bridge_of(folder: Path) -> str:
    """The network bridge of the machines of a folder. Names of networks are at most 15 letters long."""
    return folder.name[-8:]


def _pid_space(pid: int) -> str:
    """Which space of process ids a process lives in; "" if it is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _below(roots: set[int]) -> set[int]:
    """All processes that come from these."""
    parents = {pid: ppid_of(pid) for pid in all_pids()}
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def ask_ray(machines: Machines, code: str, *, seconds: float = WAIT_S) -> Any:
    """Run some Python with `ray` connected to the cluster, in a process of its own; what it assigns to `said`."""
    whole = (
        "import json, os, ray\n"
        f"ray.init(address={machines.gcs_address!r}, namespace='test', log_to_driver=False, logging_level='ERROR')\n"
        f"{code}\nprint('SAID' + json.dumps(said), flush=True)\nos._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", whole], env=machines.env(), capture_output=True, text=True, timeout=seconds
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SAID")]
    assert lines, done.stdout + done.stderr
    return json.loads(lines[-1][4:])


if __name__ == "__main__":
    sys.stdin.read()
    if Path(sys.argv[1]).exists():
        clean(Path(sys.argv[1]))
