"""The scheduler over several machines as its users start it, and what became of its jobs by their own account."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from live_cli import LiveCli
from machines import WAIT_S, Machines, all_pids, kill, lives, ppid_of, read_proc, wait_until

from fairway.client import Client
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.journal.database import Journal

WORKER = Path(__file__).with_name("worker.py")
GPUS = 4
"""The virtual GPUs of each machine."""
STANDS_STILL_S = 0.5
"""A rank that writes nothing for this long does not run: it makes twenty steps in a second."""


class Spell(NamedTuple):
    """From when to when a rank ran, by its own account."""

    job: str
    attempt: int
    rank: int
    node: str
    from_s: float
    to_s: float


class ClusterCli(LiveCli):
    """`fairway up` over machines, in a folder of its own among those that they share."""

    def __init__(self, machines: Machines, folder: Path, gpus: int = GPUS) -> None:
        super().__init__(folder)
        self.gpus = gpus
        self.machines = machines
        self.jobs = folder / "jobs"
        self.diaries = folder / "diaries"
        self.diaries.mkdir(parents=True)
        self.env = {**machines.env(), "FAIRWAY_STATE": str(self.state), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        self.errors = folder / "up.err"

    def engine(self, *options: str) -> tuple[str, ...]:
        """The words after `fairway up`."""
        given = ("--engine", f"ray:{self.machines.gcs_address}", "--jobs", str(self.jobs), "--gpus", str(self.gpus))
        return (*given, *options)

    def start(self, *options: str) -> str:
        """Start the scheduler and wait until it listens; its first line."""
        with self.errors.open("ab") as errors:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "fairway", "up", *self.engine(*options)],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        first: str = self.daemon.stdout.readline()
        assert "listening on" in first, f"{first}{self.errors.read_text()} {self.daemon.poll()}"
        return first

    def up(self, *options: str) -> None:
        """Start the scheduler, and wait until all machines are its nodes."""
        self.start(*options)
        wait_until(lambda: self.up_nodes() >= {one.name for one in self.machines}, "all nodes to be up")

    @property
    def client(self) -> Client:
        return Client(self.state)

    def up_nodes(self) -> set[str]:
        """The names of the nodes on which jobs may start."""
        assert self.daemon.poll() is None, self.errors.read_text()
        return {str(row["name"]) for row in self.client.nodes() if row["status"] == "up"}

    def wait_nodes(self, *names: str) -> None:
        """Wait until jobs may start on exactly these nodes."""
        wait_until(lambda: self.up_nodes() == set(names), f"{names} to be up", about=self.about)

    def work(self, steps: int, *words: str) -> str:
        """Submit a job of so many twentieths of a second; its id."""
        return self.submit(*words, "--", sys.executable, "-S", str(WORKER), str(self.diaries), str(steps))

    def state_of(self, job: str) -> str:
        return str(self.client.show(job)["state"])

    def begun(self, *jobs: str) -> None:
        """Wait until a rank of each job has written something."""
        for job in jobs:
            wait_until(lambda job=job: list(self.diaries.glob(f"{job}-*")), f"job {job} to begin", about=self.about)  # type: ignore[misc]

    def ended(self, jobs: Sequence[str], seconds: float = WAIT_S) -> None:
        """Wait until jobs have completed."""
        for job in jobs:
            wait_until(lambda job=job: self.client.show(job)["ended_s"], f"job {job} to end", seconds, self.about)  # type: ignore[misc]
            assert self.state_of(job) == "COMPLETED", self.told(job)

    def told(self, job: str) -> str:
        """All about a job, for messages of failed tests."""
        return json.dumps(self.client.show(job), indent=1) + self.errors.read_text()[-2000:]

    def about(self) -> str:
        """What there is to see from outside, for messages of failed tests."""
        nodes = [
            (row["name"], row["status"], row["reason"], [(gpu["jobs"], gpu["reason"]) for gpu in row["gpus"]])
            for row in self.client.nodes()
        ]
        jobs = [(row["id"], row["state"], row["reason"]) for row in self.client.ls()]
        log = "".join(path.read_text(errors="replace")[-1500:] for path in self.folder.rglob("*bridge.log"))
        return "\n".join(["", *map(str, nodes), *map(str, jobs), self.errors.read_text()[-1500:], log])

    @property
    def bridges(self) -> list[int]:
        """The processes that speak Ray for the scheduler."""
        assert self.daemon is not None
        return [
            pid for pid in all_pids() if "ray_bridge" in read_proc(pid, "cmdline") and ppid_of(pid) == self.daemon.pid
        ]

    def spells(self) -> list[Spell]:
        """When each rank ran. A rank that stood still has several spells."""
        found = []
        for path in self.diaries.glob("*-*"):
            job, attempt, rank, *_ = path.name.split("-")
            lines = [line.split() for line in path.read_text().splitlines()]
            times = [float(line[0]) for line in lines]
            node = lines[0][3] if lines else ""
            began = 0
            for at in range(1, len(times) + 1):
                if at == len(times) or times[at] - times[at - 1] > STANDS_STILL_S:
                    found.append(Spell(job, int(attempt), int(rank), node, times[began], times[at - 1]))
                    began = at
        return found

    def enough(self) -> None:
        """Let all jobs come to their end."""
        (self.diaries / "enough").touch()

    def last_lines(self) -> dict[str, list[str]]:
        """The words of the last line of every rank, without the time, by job, attempt and rank."""
        return {
            path.name.rsplit("-", 2)[0]: path.read_text().splitlines()[-1].split()[1:]
            for path in self.diaries.glob("*-*")
        }

    def records(self) -> dict[str, JobRecord]:
        """The jobs as the journal has them."""
        journal = Journal(self.state / "journal.db")
        try:
            return {stored.id: JobRecord.from_plain(stored.record) for stored in journal.jobs()}
        finally:
            journal.close()

    def close(self) -> None:
        """End the scheduler and everything that it has on any machine."""
        if self.daemon is not None:
            for pid in (*self.bridges, self.daemon.pid):
                kill(pid)
            self.daemon.wait()
            self.daemon.stdout.close()
        mine = str(self.folder)
        left = [pid for pid in all_pids() if mine in read_proc(pid, "environ") + read_proc(pid, "cmdline")]
        for pid in left:
            if pid != os.getpid():
                kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(lives(pid) for pid in left if pid != os.getpid()), "everything to end")


def check_spells(cli: ClusterCli) -> None:
    """No GPU ever had two attempts, and no attempt was doubled: by the journal and by what ranks wrote themselves."""
    records, spells = cli.records(), cli.spells()
    by_gpu: dict[int, list[Spell]] = {}
    for spell in spells:
        attempts = {attempt.number: attempt for attempt in records[spell.job].attempts}
        assert spell.attempt in attempts, f"the journal does not know of {spell}"
        gpus = attempts[spell.attempt].gpus
        # With one process for each GPU each rank has its own; otherwise the one process has all of them.
        for gpu in gpus[spell.rank : spell.rank + 1] if records[spell.job].request.processes == "per_gpu" else gpus:
            by_gpu.setdefault(gpu, []).append(spell)
    for gpu, on_it in by_gpu.items():
        ordered = sorted(on_it, key=lambda spell: spell.from_s)
        for before, after in pairwise(ordered):
            assert before.to_s <= after.from_s, f"two on GPU {gpu}: {before} and {after}"
    starts = [path.name.rsplit("-", 2)[0] for path in cli.diaries.glob("*-*")]
    doubled = {one for one in starts if starts.count(one) > 1}
    assert not doubled, f"started twice: {doubled}"


@contextmanager
def cluster_cli(machines: Machines, *options: str, policy: str = "fifo", gpus: int = GPUS) -> Iterator[ClusterCli]:
    """A scheduler over machines while the block runs, in a new folder. Each machine has `gpus` virtual GPUs."""
    number = len(list(machines.shared.iterdir()))
    cli = ClusterCli(machines, machines.shared / f"t{number}", gpus)
    options = ("--policy", policy, *options)
    try:
        cli.up(*options)
        yield cli
    finally:
        cli.close()


def env_of(pid: int) -> dict[str, Any]:
    """The environment of a process."""
    return dict(line.split("=", 1) for line in read_proc(pid, "environ").split("\0") if "=" in line)
