"""The pilot under a real Slurm: what is killed is started again beside running jobs, and the next pilot goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from machines import kill, lives, read_proc, wait_until
from slurm_site import CONTAINED, MISSING, SlurmSite

import fairway

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
        done = subprocess.run(
            ["sbatch", "--parsable", str(script)], cwd=self.folder, env=self.env, capture_output=True, text=True, check=True
        )
        number = done.stdout.strip()
        self.wait_for_nodes(number)
        return number

    def wait_for_nodes(self, number: str) -> None:
        wait_until(lambda: self.gpus() == 2 * GPUS, f"all nodes of pilot {number}", 60.0)

    def _run(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, (words, done.stdout, done.stderr, self.log())
        return done.stdout if done.returncode == 0 else ""

    def fairway(self, *words: str, check: bool = True) -> str:
        """A command as its users call it: beside the scheduler, through Slurm."""
        return self._run(str(self.jobs / "pilot" / "fairway"), *words, check=check)

    def gpus(self) -> int:
        """How many GPUs the scheduler has; 0 if there is none."""
        if not (self.jobs / "pilot" / "fairway").exists():
            return 0
        return int(json.loads(self.fairway("status", "--json", check=False) or '{"gpus": 0}')["gpus"])

    def work(self, steps: int, *words: str) -> str:
        """Submit a job of so many twentieths of a second; its id."""
        command = (sys.executable, "-S", str(WORKER), str(self.diaries), str(steps))
        return self.fairway("submit", "--parsable", *words, "--", *command).strip()

    def show(self, job: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.fairway("show", job, "--json", check=False) or "{}")
        return told

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
        wait_until(lambda: self.show(job).get("state") == "COMPLETED", f"job {job} to complete: {self.log()}", 60.0)
        return self.show(job)

    def log(self) -> str:
        return "".join(path.read_text()[-4000:] for path in sorted(self.folder.glob("fairway-*.log")))

    def find(self, job: str, *words: str) -> list[int]:
        """The processes of a job of Slurm whose command line has all these words."""
        return [
            pid for pid in self.site.processes(job) if all(word in read_proc(pid, "cmdline") for word in words) and lives(pid)
        ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    made = SlurmSite(tmp_path_factory.mktemp("slurm"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def pilots(site: SlurmSite, tmp_path: Path) -> Pilots:
    return Pilots(site, tmp_path)


def test_what_is_killed_comes_back_beside_running_jobs(pilots: Pilots) -> None:
    """The scheduler, the raylet of another node, and the head of Ray: a gang over both nodes goes on in one attempt."""
    pilot = pilots.start()
    job = pilots.work(10_000, "--gpus", str(GPUS + 1), "--per-gpu")
    wait_until(lambda: len(list(pilots.diaries.iterdir())) == GPUS + 1, "all ranks to start")

    (scheduler,) = pilots.find(pilot, "fairway\0up")
    kill(scheduler)
    pilots.goes_on(job)
    wait_until(lambda: pilots.gpus() == 2 * GPUS, "the scheduler to be back")
    assert pilots.find(pilot, "fairway\0up") != [scheduler]
    for head in (False, True):
        found = pilots.find(pilot, "raylet/raylet\0")
        (raylet,) = [pid for pid in found if ("--head\0" in read_proc(pid, "cmdline")) == head]
        kill(raylet)
        # The only GPU that is free is on the second node.
        pilots.completes(pilots.work(1))
        pilots.goes_on(job)
    told = pilots.show(job)
    assert (told["state"], told["attempts"], pilots.attempts(job)) == ("RUNNING", 1, {"1"})
    pilots.fairway("cancel", job)
    wait_until(lambda: pilots.show(job)["state"] == "CANCELLED", "the end of the job")
    # Whoever stops the scheduler ends the pilot.
    pilots.fairway("down")
    wait_until(lambda: pilots.site.state(pilot) == "COMPLETED", f"the pilot to end: {pilots.log()}")


def test_at_the_time_limit_everything_is_saved_and_the_next_pilot_goes_on(pilots: Pilots) -> None:
    # Slurm sends the signal up to half a minute early.
    pilot = pilots.start("--time", "60s", "--margin", "35s", "--again")
    gang = pilots.work(10_000, "--gpus", str(GPUS + 1), "--per-gpu", "--name", "gang")
    waiting = pilots.work(20, "--gpus", str(2 * GPUS), "--per-gpu")
    wait_until(lambda: pilots.site.state(pilot) == "COMPLETED", f"the pilot to end: {pilots.log()}", 60.0)
    assert not (pilots.jobs / "pilot" / "owner").exists()
    assert not list(pilots.folder.glob("fairway-*.0")), "the local state directory is gone"
    saved = int((pilots.jobs / "jobs" / gang / "checkpoints" / "step").read_text())
    assert saved > 0

    following = str(int(pilot) + 1)
    wait_until(lambda: pilots.site.state(following) == "RUNNING", "the next pilot to start")
    pilots.wait_for_nodes(following)
    wait_until(lambda: "2" in pilots.attempts(gang), "the gang to start again")
    first = {path.read_text().split()[2] for path in pilots.diaries.glob(f"{gang}-2-*")}
    assert first == {str(saved)}, "the second attempt begins at the checkpoint of the first"
    told = pilots.show(gang)
    assert (told["state"], told["name"], told["attempts"]) == ("RUNNING", "gang", 2)
    pilots.fairway("cancel", gang)
    assert pilots.completes(waiting)["attempts"] == 1
    pilots.site.call("scancel", following)


@pytest.mark.skipif(not CONTAINED, reason="proctrack/cgroup needs root and control groups of version 1")
def test_scancel_leaves_nothing_and_the_next_pilot_goes_on(pilots: Pilots) -> None:
    pilot = pilots.start()
    job = pilots.work(10_000, "--gpus", str(2 * GPUS), "--per-gpu", "--grace", "2s")
    pilots.goes_on(job)
    ours = pilots.site.processes(pilot)
    assert len(ours) > 10
    pilots.site.call("scancel", pilot)
    wait_until(lambda: pilots.site.state(pilot) == "CANCELLED", "the end of the pilot")
    wait_until(lambda: not any(lives(pid) for pid in ours), "everything to end", 20.0)
    marked = str(pilots.jobs)
    left = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and marked in read_proc(int(one.name), "environ")]
    assert [pid for pid in left if lives(pid)] == []
    following = pilots.start()
    wait_until(lambda: "2" in pilots.attempts(job), f"the job to start again: {pilots.log()}")
    assert pilots.show(job)["state"] == "RUNNING"
    # This time without any warning: nothing can be saved or said.
    pilots.site.call("scancel", "--signal=KILL", following)
    wait_until(lambda: pilots.site.state(following) in ("CANCELLED", "FAILED"), "the end of the pilot")
    pilots.start()
    wait_until(lambda: "3" in pilots.attempts(job), f"the job to start again: {pilots.log()}")
