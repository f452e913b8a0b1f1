"""`srun` and `scontrol show hostnames` for batch scripts over several nodes.

As with Slurm, the script runs on the first node, and `srun COMMAND` starts a *step*: the command is run as each of the
job's tasks, on all its nodes. What tasks write comes out of `srun`, which ends with the highest of their exit codes.
Tasks on this node are its children; those of other nodes are started there (`step_nodes`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from fairway.runtime.processes.srun_options import parsed, refusal
from fairway.runtime.processes.step_link import Link, TaskOutput, accepted, connected, listen

_ARRIVAL_S = 60.0
"""How long another node has to answer."""
_LAST_WORDS_S = 10.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class StepError(Exception):
    """What was asked for cannot be done."""


class StepNode(NamedTuple):
    """A node of a step: its number in the job, what it is called, and how many tasks it gets."""

    number: int
    host: str
    tasks: int


def hostnames(text: str) -> list[str]:
    """The names in a list of nodes as Slurm writes it: `a,n[01-03,7]`."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        made = [""]
        for plain, numbers in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            each = [plain] if plain else [one for piece in numbers.split(",") for one in _counted(piece)]
            made = [before + one for before in made for one in each]
        found += made
    return found


def _counted(piece: str) -> list[str]:
    first, dash, last = piece.partition("-")
    if not dash or not (first.isdecimal() and last.isdecimal()):
        return [piece]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def counts(text: str) -> list[int]:
    """Numbers for each node as Slurm writes them: `8(x2),4`."""
    pairs = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", one) for one in text.split(",")]
    return [int(one[1]) for one in pairs if one for _ in range(int(one[2] or 1))]


def layout(options: Mapping[str, str], env: Mapping[str, str]) -> list[StepNode]:
    """On which nodes a step runs, with how many tasks each."""
    hosts, usual = env["SLURM_JOB_NODELIST"].split(","), counts(env["SLURM_TASKS_PER_NODE"])
    names, gpus = env["FAIRWAY_NODE_NAMES"].split(","), counts(env["FAIRWAY_NODE_GPUS"])
    chosen = list(range(len(hosts)))
    if "nodelist" in options:
        wanted = hostnames(options["nodelist"])
        where = {name: node for known in (names, hosts) for node, name in reversed(list(enumerate(known)))}
        if unknown := [name for name in wanted if name not in where]:
            raise StepError(f"the job has no node {unknown[0]}; its nodes are {env['SLURM_JOB_NODELIST']}")
        chosen = sorted({where[name] for name in wanted})
    chosen = chosen[_number(options, "relative", 0) :]
    tasks, each = _number(options, "ntasks", 0), _number(options, "ntasks-per-node", 0)
    most = _number(options, "nodes", 0) or (min(tasks, len(chosen)) if tasks else len(chosen))
    if most > len(chosen) or not chosen:
        raise StepError(f"{most} nodes are asked for, and there are {len(chosen)}")
    chosen = chosen[:most]
    if each and not tasks:
        got = [each] * most
    elif tasks:
        got = _dealt(tasks, [gpus[node] for node in chosen])
    else:
        got = [usual[node] for node in chosen]
    return [StepNode(node, hosts[node], count) for node, count in zip(chosen, got, strict=True) if count]


def _dealt(tasks: int, weights: Sequence[int]) -> list[int]:
    """Tasks for each node by its GPUs, but no node without one as long as there are enough."""
    got = (
        [min(1, tasks)] * len(weights) if tasks >= len(weights) else [int(node < tasks) for node in range(len(weights))]
    )
    for _ in range(tasks - sum(got)):
        least = min(range(len(weights)), key=lambda node: (got[node] / weights[node], node))
        got[least] += 1
    return got


def _number(options: Mapping[str, str], name: str, otherwise: int) -> int:
    text = options.get(name, "").partition("-")[0]
    if not text:
        return otherwise
    if not text.isdecimal():
        raise StepError(f"--{name} {text!r} is not a number")
    return int(text)


def task_variables(
    nodes: Sequence[StepNode], step: int, meeting: Mapping[str, str]
) -> Iterator[tuple[StepNode, list[dict[str, str]]]]:
    """What the tasks of each node are told of the step, and of their place in it.

    Several tasks are ranks, and `meeting` says where they meet. A single one is not: it would wait for others.
    """
    total, first = sum(node.tasks for node in nodes), 0
    is_group = total > 1
    each = ",".join(str(node.tasks) for node in nodes)
    for place, node in enumerate(nodes):
        common = {
            **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS", "FAIRWAY_WORLD_SIZE"), str(total)),
            **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), str(len(nodes))),
            **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), each),
            "SLURM_NODEID": str(place),
            **dict.fromkeys(("SLURM_NODELIST", "SLURM_STEP_NODELIST"), ",".join(one.host for one in nodes)),
            "SLURMD_NODENAME": node.host,
            "SLURM_STEP_ID": str(step),
            "SLURM_STEPID": str(step),
            "SLURM_NTASKS_PER_NODE": str(node.tasks),
        }
        if is_group:
            common |= {"WORLD_SIZE": str(total), "LOCAL_WORLD_SIZE": str(node.tasks), **meeting}
            common |= dict.fromkeys(("NODE_RANK", "GROUP_RANK"), str(place))
        told = []
        for local in range(node.tasks):
            own = dict.fromkeys(("SLURM_PROCID", "FAIRWAY_RANK", *(["RANK"] * is_group)), str(first + local))
            own |= dict.fromkeys(("SLURM_LOCALID", "FAIRWAY_LOCAL_RANK", *(["LOCAL_RANK"] * is_group)), str(local))
            told.append({**common, **own})
        first += node.tasks
        yield node, told


@dataclass
class Tasks:
    """Tasks of a step on this node: they are started, and what they write and how they end is passed on."""

    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    failed: dict[int, OSError] = field(default_factory=dict)
    _heard: list[threading.Thread] = field(default_factory=list)

    def start(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], told: Sequence[Mapping[str, str]]) -> None:
        """Start tasks. They have no signals blocked if the caller has none."""
        for one in told:
            task = int(one["SLURM_PROCID"])
            try:
                self.running[task] = subprocess.Popen(
                    list(argv),
                    cwd=cwd,
                    env={**env, **one},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            except OSError as error:
                self.failed[task] = error

    def watch(self, to: Any) -> None:
        """Pass on what becomes of the tasks. `to` has the methods of a `Link`: `pass_on`, and `tell` for codes."""
        for task, made in list(self.running.items()):
            self._heard.append(threading.Thread(target=self._watch, args=(task, made, to), daemon=True))
        self._heard.append(threading.Thread(target=self._tell_failures, args=(to,), daemon=True))
        for thread in self._heard:
            thread.start()

    def signal(self, signo: int) -> None:
        """Signal all tasks that run."""
        for made in list(self.running.values()):
            made.send_signal(signo)

    def wait(self) -> None:
        """Wait until all have ended and everything is passed on."""
        for thread in self._heard:
            thread.join()

    def _tell_failures(self, to: Any) -> None:
        with contextlib.suppress(OSError):
            for task, error in self.failed.items():
                to.pass_on(TaskOutput(task, 2, f"srun: error: {error.filename}: {error.strerror}\n".encode()))
                to.tell(task=task, code=127 if isinstance(error, FileNotFoundError) else 126)

    def _watch(self, task: int, made: subprocess.Popen[bytes], to: Any) -> None:
        streams = [(number, pipe) for number, pipe in ((1, made.stdout), (2, made.stderr)) if pipe is not None]
        readers = [threading.Thread(target=_copy, args=(task, *one, to), daemon=True) for one in streams]
        for reader in readers:
            reader.start()
        code = made.wait()
        for reader in readers:
            # Processes that a task has left behind may keep its output open.
            reader.join(_LAST_WORDS_S)
        self.running.pop(task, None)
        with contextlib.suppress(OSError):
            to.tell(task=task, code=code if code >= 0 else 128 - code)


def _copy(task: int, stream: int, pipe: IO[bytes], to: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        while text := os.read(pipe.fileno(), 65536):
            to.pass_on(TaskOutput(task, stream, text))


class _Here:
    """Takes what tasks on this node tell, like a `Link`."""

    def __init__(self, news: queue.Queue[Any]) -> None:
        self._news = news

    def pass_on(self, output: TaskOutput) -> None:
        self._news.put(output)

    def tell(self, **what: Any) -> None:
        self._news.put(what)


class JobStep:
    """One `srun`: its tasks, wherever they run."""

    def __init__(self, options: Mapping[str, str], argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._options = options
        self._argv = argv
        self._env = env
        self._cwd = options.get("chdir") or str(Path.cwd())
        self._news: queue.Queue[Any] = queue.Queue(1024)
        self._tasks = Tasks()
        self._links: dict[int, Link] = {}
        self._left: dict[int, int] = {}
        self._files: dict[str, IO[bytes]] = {}
        self._rest: dict[tuple[int, int], bytes] = {}
        self.code = 0

    def run(self) -> int:
        """Start all tasks and wait for them. Returns the highest of their codes."""
        nodes, own = layout(self._options, self._env), int(self._env["FAIRWAY_NODE_RANK"])
        if not nodes:
            raise StepError("there is nothing to start: no tasks are asked for")
        self._links = self._reached([node.number for node in nodes if node.number != own])
        planned = list(task_variables(nodes, os.getpid(), self._meeting(nodes[0])))
        for node, told in planned:
            self._left |= {int(one["SLURM_PROCID"]): node.number for one in told}
            if node.number == own:
                self._tasks.start(self._argv, self._cwd, self._environment(), told)
        # Only now, or the tasks above would have them blocked. Threads, which all follow, do.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        threading.Thread(target=self._forward_signals, daemon=True).start()
        self._tasks.watch(_Here(self._news))
        for node, told in planned:
            if node.number != own:
                link = self._links[node.number]
                link.tell(argv=list(self._argv), cwd=self._cwd, env=self._environment(), tasks=told)
                threading.Thread(target=self._hear, args=(node.number, link), daemon=True).start()
        while self._left:
            self._take(self._news.get())
        for task, stream in list(self._rest):
            self._write(TaskOutput(task, stream, b""), last=True)
        return self.code

    def _meeting(self, first: StepNode) -> dict[str, str]:
        """Where ranks meet: where the script says, else on the first node of the step."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = str(probe.getsockname()[1])
        address = self._env["FAIRWAY_NODE_ADDRESSES"].split(",")[first.number]
        chosen = {"MASTER_ADDR": address, "MASTER_PORT": port}
        return {name: self._env.get(name, value) for name, value in chosen.items()}

    def _environment(self) -> dict[str, str]:
        """The variables of tasks, as `--export` says. Those of the job itself always go along."""
        asked = self._options.get("export", self._env.get("SLURM_EXPORT_ENV", "ALL")).split(",")
        if "ALL" in asked:
            found = dict(self._env)
        else:
            ours = ("SLURM_", "FAIRWAY_", "MASTER_", "CUDA_VISIBLE_DEVICES")
            found = {name: value for name, value in self._env.items() if name.startswith(ours) or name in asked}
        return found | dict(one.split("=", 1) for one in asked if "=" in one)

    def _reached(self, nodes: Sequence[int]) -> dict[int, Link]:
        """Connections to the other nodes. They come to us: only the first node of a job listens."""
        if not nodes:
            return {}
        env, secret = self._env, self._env["FAIRWAY_ATTEMPT"]
        address = env["FAIRWAY_TASKS_ADDR"]
        hub = connected(address, int(env["FAIRWAY_TASKS_PORT"]), secret)
        if hub is None:
            raise StepError("the nodes of the job cannot be reached")
        with listen(address, 0) as listening:
            hub.tell(step=listening.getsockname()[1], nodes=list(nodes))
            listening.settimeout(_ARRIVAL_S)
            found: dict[int, Link] = {}
            while set(nodes) - found.keys():
                try:
                    link = accepted(listening.accept()[0], secret)
                except TimeoutError:
                    missing = env["SLURM_JOB_NODELIST"].split(",")[min(set(nodes) - found.keys())]
                    raise StepError(f"node {missing} does not answer") from None
                hello = None if link is None else link.heard()
                if link is not None and isinstance(hello, dict):
                    found[int(hello["node"])] = link
        hub.close()
        return found

    def _hear(self, node: int, link: Link) -> None:
        while (said := link.heard()) is not None:
            self._news.put(said)
        self._news.put({"gone": node})

    def _take(self, said: Any) -> None:
        if isinstance(said, TaskOutput):
            self._write(said)
        elif "code" in said:
            self._left.pop(said["task"], None)
            self.code = max(self.code, said["code"])
            if said["code"] and self._kills():
                self._signal_all(signal.SIGTERM)
        elif lost := [task for task, node in self._left.items() if node == said.get("gone")]:
            sys.stderr.write(f"srun: error: node {said['gone']} of the job is gone\n")
            self._left = {task: node for task, node in self._left.items() if task not in lost}
            self.code = max(self.code, 1)
            self._signal_all(signal.SIGTERM)

    def _kills(self) -> bool:
        asked = self._options.get("kill-on-bad-exit", self._env.get("SLURM_KILL_BAD_EXIT", "0"))
        return asked != "0"

    def _signal_all(self, signo: int) -> None:
        self._tasks.signal(signo)
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.tell(signal=int(signo))

    def _forward_signals(self) -> None:
        """Pass signals on to the tasks. Those of keepers reach the tasks on all nodes by themselves."""
        keeper = int(self._env.get("FAIRWAY_TASKS_KEEPER", "0"))
        while True:
            caught = signal.sigwaitinfo(_FORWARDED)
            if caught.si_pid != keeper:
                self._signal_all(caught.si_signo)

    def _write(self, output: TaskOutput, *, last: bool = False) -> None:
        name = self._options.get("error" if output.stream == 2 and "error" in self._options else "output", "")
        to = self._opened(name, output.task) if name else (sys.stderr if output.stream == 2 else sys.stdout).buffer
        text = output.text
        if "label" in self._options:
            key = output.task, output.stream
            *lines, rest = (self._rest.pop(key, b"") + text).split(b"\n")
            if rest and not last:
                self._rest[key] = rest
            lines += [rest] if rest and last else []
            text = b"".join(b"%d: %s\n" % (output.task, line) for line in lines)
        with contextlib.suppress(BrokenPipeError):
            to.write(text)
            to.flush()

    def _opened(self, name: str, task: int) -> IO[bytes]:
        env = self._env
        marks = {"t": task, "j": env.get("SLURM_JOB_ID", ""), "x": env.get("SLURM_JOB_NAME", ""), "%": "%"}
        path = re.sub(r"%([tjx%])", lambda found: str(marks[found[1]]), name)
        if path not in self._files:
            self._files[path] = (Path(self._cwd) / path).open("wb")
        return self._files[path]


def asked_step(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options and the command of a step; `StepError` if its tasks would not run as asked."""
    options, argv = parsed(words)
    for name in options:
        if (why := refusal(name)) is not None:
            raise StepError(f"--{name}: {why}")
    if not argv:
        raise StepError("there is no command")
    return options, argv


def srun(words: Sequence[str]) -> int:
    """Run `srun`."""
    for signo in _FORWARDED:
        # Until tasks have been started, what the keeper tells all processes does not end this one.
        signal.signal(signo, lambda *_: None)
    try:
        options, argv = asked_step(words)
        if os.environ.get("FAIRWAY_NODE_RANK") != "0":
            raise StepError("steps are started by the script, on the first node of the job")
        return JobStep(options, argv, os.environ).run()
    except (StepError, OSError) as error:
        sys.stderr.write(f"srun: error: {error}\n")
        return 1


def scontrol(words: Sequence[str]) -> int:
    """Run `scontrol`, as far as scripts need it to find the names of their nodes."""
    if list(words[:2]) not in (["show", "hostnames"], ["show", "hostname"]):
        said = "there is no Slurm here; an exit with code 75 asks to be run again"
        sys.stderr.write(f"scontrol {' '.join(words)}: {said}\n")
        return 1
    text = words[2] if len(words) > 2 else os.environ.get("SLURM_JOB_NODELIST", socket.gethostname())
    print("\n".join(hostnames(text)))
    return 0
