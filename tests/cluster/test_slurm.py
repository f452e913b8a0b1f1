"""The pilot under a real Slurm: what is killed is started again beside running jobs, and the next pilot goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from machines import WAIT_S, all_pids, kill, lives, read_proc, wait_until
from slurm_site import CONTAINED, MISSING, SlurmSite
from worker import SAVE_EVERY

import fairway
from fairway.client import Client
from fairway.core.errors import FairwayError
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.journal.database import Journal

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"needs Slurm; there is no {', '.join(MISSING)}"),
    pytest.mark.skipif(not find_spec("ray"), reason="needs ray"),
]
WORKER = Path(__file__).with_name("worker.py")
GPUS = 2
"""The virtual GPUs of each node."""


class Pilots:
    """Pilots in a Slurm of their own, which share one directory."""

    def __init__(self, site: SlurmSite, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.jobs, self.diaries = folder / "jobs", folder / "diaries"
        self.diaries.mkdir(parents=True)
        self.env = {**site.env, "PYTHONPATH": str(Path(fairway.__file__).parents[1]), "COLUMNS": "200"}

    def start(self, *options: str) -> str:
        """Submit a pilot and wait until its scheduler has all nodes; the number of its job."""
        words = ("slurm-script", "-N", "2", "--jobs", str(self.jobs), "--state", str(self.folder), "--policy", "fifo")
        text = self._run(sys.executable, "-m", "fairway", *words, "--gpus", str(GPUS), *options)
        script = self.folder / "pilot.sh"
        script.write_text(text, encoding="utf-8")
        number = self._run("sbatch", "--parsable", str(script)).strip()
        self.wait_for_nodes(number)
        return number

    def wait_for_nodes(self, number: str) -> None:
        wait_until(lambda: self.gpus() == 2 * GPUS, f"all nodes of pilot {number}")

    def _run(self, *words: str) -> str:
        done = subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr, self.log())
        return done.stdout

    def fairway(self, *words: str) -> str:
        """A command as its users call it: beside the scheduler, through Slurm."""
        return self._run(str(self.jobs / "pilot" / "fairway"), *words)

    def asked(self, what: Callable[[Client], Any]) -> Any:
        """What the scheduler answers; None if there is none. This host has all its nodes, and so its socket."""
        for state in self.folder.glob("fairway-*.0"):
            with suppress(FairwayError, OSError):
                return what(Client(state))
        return None

    def gpus(self) -> int:
        """How many GPUs the scheduler has; 0 if there is none."""
        return int((self.asked(Client.status) or {"gpus": 0})["gpus"])

    def work(self, steps: int, *words: str) -> str:
        """Submit a job of so many twentieths of a second; its id."""
        command = (sys.executable, "-S", str(WORKER), str(self.diaries), str(steps))
        return self.fairway("submit", "--parsable", *words, "--", *command).strip()

    def show(self, job: str) -> dict[str, Any]:
        return self.asked(lambda client: client.show(job)) or {}

    def steps(self, job: str) -> int:
        """How many steps the ranks of a job have made, in all attempts."""
        return sum(path.read_text().count(" step ") for path in self.diaries.glob(f"{job}-*"))

    def attempts(self, job: str) -> set[str]:
        """The attempts of a job by what its ranks wrote."""
        return {path.name.split("-")[1] for path in self.diaries.glob(f"{job}-*")}

    def goes_on(self, job: str) -> None:
        before = self.steps(job)
        wait_until(lambda: self.steps(job) > before + 4, f"job {job} to go on")

    def completes(self, job: str) -> dict[str, Any]:
        wait_until(lambda: self.show(job).get("state") == "COMPLETED", f"job {job} to complete", about=self.log)
        return self.show(job)

    def log(self) -> str:
        return "".join(path.read_text()[-4000:] for path in sorted(self.folder.glob("fairway-*.log")))

    def find(self, job: str, *words: str) -> list[int]:
        """The processes of a job of Slurm whose command line has all these words."""
        return [
            pid
            for pid in self.site.processes(job)
            if all(word in read_proc(pid, "cmdline") for word in words) and lives(pid)
        ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    made = SlurmSite(tmp_path_factory.mktemp("slurm"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def pilots(site: SlurmSite, tmp_path: Path) -> Iterator[Pilots]:
    yield Pilots(site, tmp_path)
    site.cancel_all()


def raylets(pilots: Pilots, pilot: str) -> dict[int, bool]:
    """The raylets of a pilot, and whether each is the head's."""
    return {pid: "--head\0" in read_proc(pid, "cmdline") for pid in pilots.find(pilot, "raylet/raylet\0")}


def kill_parts(pilots: Pilots, pilot: str, gang: str) -> None:
    """Kill the scheduler, the raylet of the second node, and that of the head with everything that the head has."""
    (scheduler,) = pilots.find(pilot, "fairway\0up")
    kill(scheduler)
    pilots.goes_on(gang)
    wait_until(lambda: pilots.gpus() == 2 * GPUS, "the scheduler to be back")
    assert pilots.find(pilot, "fairway\0up") != [scheduler]
    for head in (False, True):
        before = raylets(pilots, pilot)
        kill(next(pid for pid in before if before[pid] == head))
        # All nodes join a new head.
        kept = 0 if head else 1
        wait_until(
            lambda: len(now := raylets(pilots, pilot)) == 2 and len(now.keys() & before.keys()) == kept,  # noqa: B023
            "Ray to be back",
            about=pilots.log,
        )
        # The only GPU that is free is on the second node.
        pilots.completes(pilots.work(1))
        pilots.goes_on(gang)


def goes_on_at(pilots: Pilots, pilot: str, gang: str, attempt: int) -> None:
    """A new pilot has taken the gang over, which goes on at its checkpoint in a new attempt."""
    pilots.wait_for_nodes(pilot)
    (before,) = pilots.diaries.glob(f"{gang}-{attempt - 1}-0-*")
    saved = int(before.read_text().rpartition(" saved ")[2].split()[0])
    (diary,) = wait_until(lambda: list(pilots.diaries.glob(f"{gang}-{attempt}-0-*")), f"attempt {attempt}")
    wait_until(lambda: " saved " in diary.read_text(), "its first checkpoint")
    # It may have been killed between a checkpoint and its line about that.
    assert saved <= int(diary.read_text().split()[2]) <= saved + SAVE_EVERY
    told = pilots.show(gang)
    assert (told["state"], told["name"], told["attempts"]) == ("RUNNING", "gang", attempt)


def test_a_gang_goes_on_whatever_dies_and_from_pilot_to_pilot(pilots: Pilots) -> None:
    first = pilots.start("--time", "1h", "--margin", "100s", "--again")
    site = pilots.site
    gang = pilots.work(10_000, "--gpus", str(GPUS + 1), "--per-gpu", "--name", "gang")
    waiting = pilots.work(1, "--gpus", str(2 * GPUS), "--per-gpu", "--hold")
    pilots.goes_on(gang)
    for raylet in raylets(pilots, first):
        assert "\0SLURM_GPUS_ON_NODE=2\0" in read_proc(raylet, "environ"), "the GPUs that come with whole nodes"
    kill_parts(pilots, first, gang)
    told = pilots.show(gang)
    assert (told["state"], told["attempts"], pilots.attempts(gang)) == ("RUNNING", 1, {"1"})

    # The time limit comes near. Slurm looks every half a minute, and sends its signal that much earlier.
    site.call("scontrol", "update", f"JobId={first}", f"TimeLimit={site.minutes(first) + 2}")
    wait_until(lambda: site.state(first) == "COMPLETED", "the pilot to end", about=pilots.log)
    assert not list(pilots.folder.glob("fairway-*.0")), "the local state directory is gone"
    second = str(int(first) + 1)
    wait_until(lambda: site.state(second) == "RUNNING", "the next pilot, which the first one has submitted")
    goes_on_at(pilots, second, gang, 2)
    assert pilots.show(waiting)["state"] == "PENDING"

    # Everything dies at once, without a warning. What is known of the jobs is in the copy of the journal.
    for pid in site.processes(second):
        kill(pid)
    wait_until(lambda: site.state(second) == "FAILED", "the end of the pilot")
    third = pilots.start()
    goes_on_at(pilots, third, gang, 3)

    cancelled_and_gone(pilots, third)
    with closing(Journal(pilots.jobs / "pilot" / "state" / "journal.db")) as journal:
        records = {job.id: JobRecord.from_plain(job.record) for job in journal.jobs()}
    assert not records[gang].state.ended
    assert records[waiting].state == "PENDING"


def cancelled_and_gone(pilots: Pilots, pilot: str) -> None:
    """Cancel a pilot. It saves what it can, and Slurm ends all of its processes."""
    ours = pilots.site.processes(pilot)
    assert len(ours) > 10
    pilots.site.call("scancel", pilot)
    wait_until(lambda: pilots.site.state(pilot) == "CANCELLED", "the end of the pilot")
    wait_until(lambda: not any(lives(pid) for pid in ours), "everything to end")
    # Without control groups Slurm waits neither for keepers, which have been asked to end, nor for Ray's agents.
    marked, where = str(pilots.jobs), ("cmdline", "environ") if CONTAINED else ("cmdline",)
    left = [pid for pid in all_pids() if any(marked in read_proc(pid, one) for one in where)]
    wait_until(lambda: not any(lives(pid) for pid in left), "everything to end", 0.1 if CONTAINED else WAIT_S)
