"""The nodes of a batch job: the script runs on the first one, and the others wait for steps that its `srun` asks for.

Each is a rank of its keeper. The others connect to the first, and it passes the wish of an `srun` on to them; they then
connect to that `srun` and start its tasks. When the script ends, they end. Tasks are in the process group of the rank
that started them: what a keeper asks of its ranks, it asks of them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairway.runtime.processes.srun import Tasks, scontrol, srun
from fairway.runtime.processes.step_link import Link, accepted, connected, listen

PROGRAM = "fairway-step"
"""Stands for this program in a launch: the keeper knows where it is."""
_ROOT = str(Path(__file__).resolve().parents[3])
_BOOT = "import sys; sys.path.append(sys.argv[1]); from fairway.runtime.processes import step_nodes; step_nodes.main()"
_MEET_S, _AGAIN_S = 600.0, 0.1
"""How long the first node of a job may take to start, and how often others look whether it has."""
_END_S = 10.0
"""How long tasks have to end when their `srun` is gone."""
_STOPPED = 128 + signal.SIGTERM
_OWN = ("CUDA_VISIBLE_DEVICES", "FAIRWAY_NODE_DIR", "FAIRWAY_NODE_RANK", "FAIRWAY_LOG", "SLURM_GPUS_ON_NODE")
"""Variables that belong to a node, not to the script."""
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def program(argv: Sequence[str]) -> list[str]:
    """A command of a launch, with the place of this program on this machine."""
    if argv[0] != PROGRAM:
        return list(argv)
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT, _ROOT, *argv[1:]]


class Hub:
    """The first node: it knows the others, and tells them of steps."""

    def __init__(self, listening: socket.socket, secret: str) -> None:
        self._listening = listening
        self._secret = secret
        self._nodes: dict[int, Link] = {}
        self._wishes: dict[int, list[int]] = {}
        self._changing = threading.Lock()

    def run(self) -> None:
        """Take connections until listening ends. Each has a thread, so that none can delay another."""
        while True:
            try:
                end = self._listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._meet, args=(end,), daemon=True).start()

    def end(self) -> None:
        """The script has ended: so do the others."""
        self._listening.close()
        with self._changing:
            for link in self._nodes.values():
                with contextlib.suppress(OSError):
                    link.tell(end=True)

    def _meet(self, end: socket.socket) -> None:
        link = accepted(end, self._secret)
        said = None if link is None else link.heard()
        if link is None or not isinstance(said, dict):
            return
        with self._changing, contextlib.suppress(OSError):
            if "node" in said:
                node = int(said["node"])
                self._nodes[node] = link
                for port in self._wishes.pop(node, []):
                    link.tell(step=port)
            else:
                for node in said.get("nodes", ()):
                    if node in self._nodes:
                        self._nodes[node].tell(step=said["step"])
                    else:
                        # It is still about to start.
                        self._wishes.setdefault(node, []).append(said["step"])


def run_script(command: Sequence[str]) -> int:
    """Run the script of a job on its first node. Returns its exit code."""
    env = dict(os.environ)
    hub = Hub(listen(env["FAIRWAY_TASKS_ADDR"], int(env["FAIRWAY_TASKS_PORT"])), env["FAIRWAY_ATTEMPT"])
    threading.Thread(target=hub.run, daemon=True).start()
    tools = _tools(Path(env["FAIRWAY_NODE_DIR"]))
    env["PATH"] = f"{tools}{os.pathsep}{env.get('PATH', os.defpath)}"
    env["FAIRWAY_TASKS_KEEPER"] = str(os.getppid())
    _wait_for_children()
    try:
        code = subprocess.Popen(list(command), env=env).wait()
    except OSError as error:
        sys.stderr.write(f"fairway: cannot start: {command[0]!r}: {error.strerror}\n")
        code = 127
    hub.end()
    return code if code >= 0 else 128 - code


def _tools(folder: Path) -> Path:
    """A folder with `srun` and `scontrol`."""
    shared = folder / "shared"
    tools = (shared if shared.is_dir() else folder) / "bin"
    tools.mkdir(exist_ok=True)
    for name in ("srun", "scontrol"):
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.join(program([PROGRAM, name]))} "$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    return tools


def serve() -> int:
    """Wait on another node for steps, and start their tasks, until the script has ended."""
    address, secret = os.environ["FAIRWAY_TASKS_ADDR"], os.environ["FAIRWAY_ATTEMPT"]
    _wait_for_children()
    until_s, hub = time.monotonic() + _MEET_S, None
    while hub is None:
        hub = connected(address, int(os.environ["FAIRWAY_TASKS_PORT"]), secret)
        if hub is None and time.monotonic() > until_s:
            sys.stderr.write(f"fairway: the first node of the job, {address}, does not answer\n")
            return 1
        time.sleep(0.0 if hub else _AGAIN_S)
    hub.tell(node=int(os.environ["FAIRWAY_NODE_RANK"]))
    while isinstance(said := hub.heard(), dict):
        if "end" in said:
            return 0
        threading.Thread(target=_take_step, args=(address, int(said["step"]), secret), daemon=True).start()
    # The first node is gone, and its keeper knows why.
    return _STOPPED


def _take_step(address: str, port: int, secret: str) -> None:
    """Start the tasks of a step on this node, and see to them until they have ended."""
    link = connected(address, port, secret)
    if link is None:
        return
    link.tell(node=int(os.environ["FAIRWAY_NODE_RANK"]))
    order = link.heard()
    if not isinstance(order, dict):
        return
    tasks = Tasks()
    tasks.start(order["argv"], order["cwd"], own_environment(order["env"], os.environ), order["tasks"])
    tasks.watch(link)
    threading.Thread(target=_obey, args=(link, tasks), daemon=True).start()
    tasks.wait()
    link.close()


def own_environment(told: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The environment of tasks on this node: the script's, but with what belongs to this node."""
    found = {**told, **{name: own[name] for name in _OWN if name in own}}
    for name in _INTERFACES:
        # Unless the script has named another network.
        if name in found and found[name] == told.get("FAIRWAY_NODE_INTERFACE") and name in own:
            found[name] = own[name]
    found["SLURM_CPUS_ON_NODE"] = str(os.cpu_count() or 1)
    return found | {"FAIRWAY_NODE_INTERFACE": own.get("FAIRWAY_NODE_INTERFACE", "")}


def _obey(link: Link, tasks: Tasks) -> None:
    """Pass signals on to tasks. If their `srun` is gone, they end."""
    while isinstance(said := link.heard(), dict):
        tasks.signal(int(said["signal"]))
    tasks.signal(signal.SIGTERM)
    time.sleep(_END_S)
    tasks.signal(signal.SIGKILL)


def _wait_for_children() -> None:
    """Do not end at a signal that all processes of the rank get. What is started later has the usual handlers."""
    for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signo, lambda *_: None)


def main() -> None:
    """Be one of the programs: `script COMMAND…`, `serve`, `srun …` or `scontrol …`."""
    name, words = sys.argv[2], sys.argv[3:]
    run: dict[str, Any] = {"script": run_script, "serve": lambda _: serve(), "srun": srun, "scontrol": scontrol}
    code = run[name](words)
    sys.stdout.flush()
    # Threads that still wait for something do not keep it.
    os._exit(code)
