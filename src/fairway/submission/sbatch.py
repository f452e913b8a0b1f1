"""sbatch scripts, unchanged: their `#SBATCH` lines are read, and the script itself is run.

Lines count until the first command, as with Slurm. Options that are not carried out are sorted in `sbatch_names`: what
would run something else than asked is refused, and what only concerns another site is left out with a remark.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fairway.core.errors import InputError
from fairway.core.hardware import known_gpu
from fairway.core.units import clock_s, size_bytes
from fairway.submission.draft import Draft, Folder, gpu_fields, local_folder
from fairway.submission.exported import Export, export_of
from fairway.submission.quantities import Gpus, array, count_range, dependencies, instant_s
from fairway.submission.sbatch_names import SBATCH
from fairway.submission.shell import refuse_steps, run_script, run_script_text, typed

_SHORT = {
    "J": "job-name",
    "N": "nodes",
    "G": "gpus",
    "t": "time",
    "a": "array",
    "d": "dependency",
    "o": "output",
    "e": "error",
    "D": "chdir",
    "H": "hold",
    "b": "begin",
    "p": "partition",
    "n": "ntasks",
    "c": "cpus-per-task",
    "A": "account",
    "q": "qos",
    "C": "constraint",
    "w": "nodelist",
    "x": "exclude",
    "L": "licenses",
    "M": "clusters",
    "S": "core-spec",
    "B": "extra-node-info",
    "F": "nodefile",
    "i": "input",
    "k": "no-kill",
    "m": "distribution",
    "O": "overcommit",
    "s": "oversubscribe",
    "Q": "quiet",
    "v": "verbose",
    "W": "wait",
}
_FLAGS = frozenset(
    (
        "requeue",
        "no-requeue",
        "hold",
        "exclusive",
        "oversubscribe",
        "overcommit",
        "spread-job",
        "contiguous",
        "kill-on-invalid-dep",
        "no-kill",
        "stepmgr",
        "parsable",
        "test-only",
        "wait",
        "get-user-env",
        "ignore-pbs",
        "reboot",
        "use-min-nodes",
        "verbose",
        "quiet",
    )
)
MOST_LINE = 4096
"""The most characters of a line for sbatch."""
_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")


def is_sbatch(text: str) -> bool:
    """Whether a file has lines for sbatch."""
    return re.search(r"^#SBATCH\s", text, re.MULTILINE) is not None


def from_sbatch(path: Path, arguments: Sequence[str], now: datetime) -> Draft:
    """Read a script and say how to run it."""
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    read = _read(text, str(path), now, local_folder)
    fields = {"name": path.name, **read.all_fields()}
    interpreter = _interpreter(text)
    if interpreter:
        fields["command"] = (*interpreter, str(path.resolve()), *arguments)
    else:
        fields["command"] = run_script(str(path.resolve()), tuple(arguments))
        fields["shown"] = typed(str(path), *arguments)
    return Draft(fields, read.array, read.export, tuple(read.remarks))


def from_sbatch_text(
    text: str,
    arguments: Sequence[str],
    now: datetime,
    *,
    source: str = "standard input",
    folder: Folder = local_folder,
) -> Draft:
    """Read a script that is not a file, as from a pipe; it is kept with the job. `source` is what it came from."""
    if not text.strip():
        raise InputError("the script is empty", path=source)
    read = _read(text, source, now, folder)
    fields = {"name": "sbatch", **read.all_fields()}
    fields["command"] = run_script_text(text, "sbatch", tuple(arguments))
    fields["shown"] = typed("-", *arguments) + f" (a script from {source})"
    interpreter = _interpreter(text)
    if interpreter:
        read.remarks.append(
            f"{source}:1: the script is run by bash, not by {interpreter[0]}; only files have their own"
        )
    return Draft(fields, read.array, read.export, tuple(read.remarks))


def _read(text: str, source: str, now: datetime, folder: Folder) -> _Reader:
    read = _Reader(source, now, folder)
    for line, name, value in _options(text, source):
        read.take(line, name, value)
    refuse_steps(text, source)
    return read


def _interpreter(text: str) -> list[str]:
    """The program that runs the script, if it is not a shell."""
    first = text.partition("\n")[0]
    words = first[2:].split() if first.startswith("#!") else []
    names = [Path(word).name for word in words]
    return [] if not words or any(name in _SHELLS for name in names) else words


def _options(text: str, path: str) -> Iterator[tuple[int, str, str | None]]:
    """The options of the lines before the first command: line, name, value."""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or (line.startswith("#") and not line.startswith("#SBATCH")):
            continue
        if not line.startswith("#SBATCH"):
            return
        if len(line) > MOST_LINE:
            raise InputError(f"this line is longer than {MOST_LINE:,} characters", path=path, line=number)
        try:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError as error:
            raise InputError(f"this line cannot be read: {error}", path=path, line=number) from None
        yield from ((number, name, value) for name, value in _pairs(words, path, number))


def _pairs(words: list[str], path: str, line: int) -> Iterator[tuple[str, str | None]]:
    """Options with their values: `--name=value`, `--name value`, `-Nvalue`, `-N value`."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            given: str | None = value if equals else None
        elif word.startswith("-") and len(word) > 1:
            name, given = _SHORT.get(word[1], word[:2]), word[2:].removeprefix("=") or None
        else:
            several = "; submit each component as a job of its own" if word in ("hetjob", "packjob") else ""
            raise InputError(f"{word!r} is no option of sbatch{several}", path=path, line=line)
        if given is None and name not in _FLAGS and rest and not rest[0].startswith("-"):
            given = rest.pop(0)
        yield name, given


class _Reader:
    """Takes options one by one. GPUs are computed at the end, as they may be given per node."""

    def __init__(self, path: str, now: datetime, folder: Folder) -> None:
        self.path = path
        self.folder = folder
        self.now = now
        self.fields: dict[str, Any] = {}
        self.array: Any = None
        self.export: Export | None = None
        self.remarks: list[str] = []
        self._nodes = (1, 1)
        self._tasks, self._tasks_per_node = 1, False
        self._total: Gpus | None = None
        self._per: tuple[str, Gpus] | None = None
        self._warned_s = 0.0
        self._cpus = 0
        self._each: dict[str, int] = {}
        self._line = 0

    def take(self, line: int, name: str, value: str | None) -> None:
        """One option; an error names its line."""
        act, self._line = _ACTS.get(name), line
        if act is None:
            name = name.lstrip("-")
            refusal = SBATCH.refusal(name, _ACTS)
            if refusal is not None:
                raise InputError(f"--{name}: {refusal}", path=self.path, line=line)
            self.remarks.append(f"{self.path}:{line}: {SBATCH.remark(f'--{name}', name)}")
            return
        if value is None and name not in _FLAGS:
            raise InputError(f"--{name} has no value", path=self.path, line=line)
        try:
            act(self, value or "")
        except InputError as error:
            raise InputError(f"--{name}: {error.message}", path=self.path, line=line) from None

    def all_fields(self) -> dict[str, Any]:
        """The fields of the request, without the command."""
        tasks = self._tasks * (self._nodes[0] if self._tasks_per_node else 1)
        gpus = self._gpu_fields(tasks)
        if "tasks of a GPU" in self._each:
            tasks = self._each["tasks of a GPU"] * gpus["gpus"]
        if tasks > 1:
            self._env("FAIRWAY_TASKS", str(tasks))
        limits = self._machine_limits(tasks, gpus["gpus"])
        return {**self.fields, **limits, **gpus, **self._limit_fields(), "slurm_env": True}

    def _machine_limits(self, tasks: int, gpus: int) -> dict[str, Any]:
        """CPUs and memory of the whole job, where they are given per task, CPU or GPU."""
        cpus = tasks * self._cpus or gpus * self._each.get("CPUs of a GPU", 0)
        limits: dict[str, Any] = {"cpus": float(cpus)} if cpus else {}
        memory_bytes = gpus * self._each.get("memory of a GPU", 0) or (cpus or tasks) * self._each.get(
            "memory of a CPU", 0
        )
        return limits | ({"host_memory_bytes": memory_bytes} if memory_bytes else {})

    def _gpu_fields(self, tasks: int) -> dict[str, Any]:
        """All GPUs of the job. On how many nodes they are is up to the placement."""
        low, high = self._nodes
        if self._total is not None:
            wanted = self._total
        elif self._per is not None:
            each, count = self._per
            wanted = count.times(tasks, tasks) if each == "task" else count.times(low, high)
        else:
            wanted = Gpus(1, 1).times(low, high)
            self.remarks.append(f"{self.path}: no GPUs are asked for; the job gets {wanted.least}")
        if (low, high) != (1, 1):
            self.remarks.append(f"{self.path}: the job gets its GPUs on as few nodes as it finds them, maybe on one")
        return gpu_fields(wanted)

    def _limit_fields(self) -> dict[str, Any]:
        """Slurm warns before the time limit; here the grace period follows it. Together they are as long as asked."""
        limit_s = self.fields.get("limit_s", 0.0)
        return {"limit_s": limit_s - self._warned_s} if limit_s > self._warned_s > 0 else {}

    def set(self, name: str, value: Any) -> None:
        """Note a field of the request."""
        self.fields[name] = value

    def _env(self, name: str, value: str) -> None:
        self.fields.setdefault("env", {})[name] = value

    def nodes(self, text: str) -> None:
        """Nodes, or a range of them."""
        self._nodes = count_range(text, what="nodes", separators="-")

    def tasks(self, text: str, *, per_node: bool) -> None:
        """Tasks that `srun` starts."""
        self._tasks, self._tasks_per_node = count_range(text, what="ntasks", separators="-")[0], per_node

    def cpus(self, text: str) -> None:
        """Cores of each task: scripts read how many they asked for, and the job is limited to all of them."""
        self._cpus = count_range(text, what="cpus-per-task", separators="-")[0]
        self._env("SLURM_CPUS_PER_TASK", str(self._cpus))

    def memory(self, text: str) -> None:
        """Memory of the machine; a bare number is MiB, and 0 is all of it."""
        self.fields["host_memory_bytes"] = _bytes(text)

    def each(self, what: str, number: int) -> None:
        """Something of which the job gets so much for each of its GPUs or CPUs."""
        self._each[what] = number

    def constraint(self, text: str) -> None:
        """Features of nodes: the name of a GPU type counts, and others are another site's."""
        names = [name.strip("() ") for name in re.split(r"[&|,]", text)]
        known = [gpu.name for gpu in map(known_gpu, names) if gpu is not None]
        if len(known) == len(names) and ("&" not in text or len(names) == 1):
            self.fields["gpu_types"] = tuple(known)
        else:
            self.remarks.append(f"{self.path}:{self._line}: --constraint={text} is left out: --type names a GPU type")

    def total(self, text: str) -> None:
        """GPUs of the whole job."""
        self._total = _typed(text)

    def per(self, each: str, text: str) -> None:
        """GPUs per node or task."""
        self._per = each, _typed(text)

    def gres(self, text: str) -> None:
        """Generic resources; only GPUs count here."""
        for part in text.split(","):
            name, _, rest = part.removeprefix("gres/").removeprefix("gres:").partition(":")
            if name.partition("=")[0] == "gpu":
                rest = rest or name.partition("=")[2]
                asked = re.sub(r"\(.*\)$", "", rest).replace("=", ":") or "1"
                # A type alone means one GPU of it.
                self._per = "node", _typed(asked if asked.rpartition(":")[2].isdigit() else f"{asked}:1")
            else:
                self.remarks.append(f"{self.path}: the resource {name!r} is left out: Fairway counts GPUs only")

    def time(self, text: str) -> None:
        """The time limit; a bare number is minutes."""
        if text.lower() in ("unlimited", "infinite", "0"):
            return
        seconds = clock_s(text)
        if not seconds:
            raise InputError(f"{text!r} is not a time limit; Slurm writes minutes, H:M:S or D-H:M:S")
        self.fields["limit_s"] = seconds

    def requeue(self, _: str) -> None:
        """A script that may be started again reads its last checkpoint."""
        self.fields["preempt"] = "checkpoint"

    def no_requeue(self, _: str) -> None:
        """A script that must not be started again is suspended in place."""
        self.fields["preempt"] = "suspend"

    def signal(self, text: str) -> None:
        """`USR1@90`: a warning this long before the end, which is the grace period here."""
        found = re.fullmatch(r"(?:[BR]+:)?([A-Za-z0-9]+)(?:@([0-9]+))?", text)
        if found is None:
            raise InputError(f"{text!r} is not written like TERM@90")
        name = found[1].upper().removeprefix("SIG")
        if name not in ("TERM", "15"):
            self.remarks.append(f"{self.path}: --signal={text}: jobs are asked to stop by SIGTERM, not by {found[1]}")
        self._warned_s = float(found[2] or 60)
        self.fields["grace_s"] = self._warned_s

    def dependency(self, text: str) -> None:
        """The jobs to wait for; `singleton` has no counterpart."""
        if text == "singleton":
            raise InputError("Fairway cannot wait for all jobs of a name. Name them: --dependency=afterany:ID")
        self.fields["depends"] = dependencies([text])

    def output(self, text: str) -> None:
        """Where users look for the output: a link to the log."""
        self._env("FAIRWAY_OUTPUT", text)

    def exported(self, text: str) -> None:
        """`ALL`, `NONE`, names, and names with values."""
        self.export, values = export_of(text)
        for name, value in values.items():
            self._env(name, value)


def _bytes(text: str) -> int:
    """A size as Slurm writes it: a bare number is MiB."""
    return size_bytes(f"{text}M" if text.isdigit() else text)


def _count(text: str) -> int:
    return count_range(text, what="the number", separators="-")[0]


def _typed(text: str) -> Gpus:
    """`4` or `a100:4`."""
    kind, _, number = text.rpartition(":")
    low, _ = count_range(number, what="GPUs", separators="-")
    return Gpus(low, low, kind)


_ACTS: dict[str, Callable[[_Reader, str], None]] = {
    "job-name": lambda read, text: read.set("name", text),
    "nodes": _Reader.nodes,
    "ntasks": lambda read, text: read.tasks(text, per_node=False),
    "ntasks-per-node": lambda read, text: read.tasks(text, per_node=True),
    "cpus-per-task": _Reader.cpus,
    "mem": _Reader.memory,
    "mem-per-cpu": lambda read, text: read.each("memory of a CPU", _bytes(text)),
    "mem-per-gpu": lambda read, text: read.each("memory of a GPU", _bytes(text)),
    "cpus-per-gpu": lambda read, text: read.each("CPUs of a GPU", _count(text)),
    "ntasks-per-gpu": lambda read, text: read.each("tasks of a GPU", _count(text)),
    "constraint": _Reader.constraint,
    "gpus": _Reader.total,
    "gpus-per-node": lambda read, text: read.per("node", text),
    "gpus-per-task": lambda read, text: read.per("task", text),
    "gres": _Reader.gres,
    "time": _Reader.time,
    "array": lambda read, text: setattr(read, "array", array(text)),
    "requeue": _Reader.requeue,
    "no-requeue": _Reader.no_requeue,
    "signal": _Reader.signal,
    "dependency": _Reader.dependency,
    "output": _Reader.output,
    "chdir": lambda read, text: read.set("cwd", read.folder(text)),
    "export": _Reader.exported,
    "hold": lambda read, _: read.set("hold", True),
    "begin": lambda read, text: read.set("begin_s", instant_s(text, read.now)),
}

OPTIONS = frozenset(_ACTS)
"""The options that are carried out."""
