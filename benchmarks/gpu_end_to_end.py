"""Twelve real trainings on one real GPU under several policies, and what the simulator had forecast.

    python benchmarks/gpu_end_to_end.py --out results.json [--policy NAME …] [--quick]

Half of the jobs are programs that know nothing of Fairway and are suspended when they lose the GPU; half are functions
in an executor. First one of each kind runs alone with few and with many steps, which gives the time of its start and of
a step. From that the simulator forecasts each run before it begins. `--quick` runs jobs that only wait, on a virtual
GPU. Needs PyTorch with CUDA, nvidia-ml-py and torch-memory-saver.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from fairway.core.job import JobSpec, Workload
from fairway.runtime.daemon.daemon import Daemon
from fairway.runtime.daemon.settings import Options
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.machine import Machine, found_machine, virtual_machine
from fairway.simulator.rules import Rules
from fairway.simulator.run import simulate

HERE = Path(__file__).resolve().parent
POLICIES = ("fifo", "tiresias:queues=8/24", "gandiva:quantum_s=8,pack=1,grow=off,migrate=off", "hare")
LENGTHS = (40, 600, 80, 300, 30, 150, 500, 60, 200, 40, 100, 350)
"""The steps of the jobs, in the order in which they come."""
EVERY_S = 1.0
"""The time between two submissions."""
MIN_RUN_S = 2.0
SWITCH_S = 0.3
"""What a switch between suspended jobs costs, as `gpu_suspend.py` measures it for small jobs."""
CALIBRATION = (20, 120)


class Kind(NamedTuple):
    """What one kind of job takes: to start, and for a step."""

    start_s: float
    step_s: float


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def request(steps: int, number: int, *, hosted: bool, quick: bool, expected_s: float = 0.0) -> JobRequest:
    """A job: hosted by an executor, or a program of its own."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH", ""))))
    about: dict[str, Any] = {"user": "me", "name": f"job{number}", "cwd": str(HERE), "env": {"PYTHONPATH": path}}
    about |= {"preempt": "suspend", "grace_s": 10.0, "expected_s": expected_s or None, "memory_bytes": 4 << 30}
    if hosted:
        words = (str(steps), "yes") if quick else (str(steps),)
        return JobRequest((sys.executable, *words), executor="gpu_end_to_end_jobs:make_job", **about)
    program = (sys.executable, str(HERE / "gpu_end_to_end_jobs.py"), str(steps))
    return JobRequest((*program, "waits") if quick else program, **about)


def wait_for(records: list[JobRecord], seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while not all(record.state.ended for record in records):
        if time.monotonic() > end_s:
            told = ", ".join(f"{one.id} {one.state} {one.reason}" for one in records if not one.state.ended)
            raise SystemExit(f"waited {seconds:.0f} s in vain: {told}")
        time.sleep(0.02)


def took_s(record: JobRecord) -> float:
    """How long a job took from its submission to its end."""
    assert record.ended_s is not None
    return record.ended_s - record.submitted_s


def calibrated(folder: Path, machine: Machine, quick: bool) -> dict[bool, Kind]:
    """How long the start and a step of both kinds take, each alone."""
    daemon = Daemon(Options(folder / "alone", policy="fifo"), machine)
    daemon.start()
    kinds = {}
    for hosted in (False, True):
        found = []
        # The first hosted job also starts the executor, which the others do not.
        for steps in (CALIBRATION[0], *CALIBRATION) if hosted else CALIBRATION:
            [record] = daemon.scheduler.submit([request(steps, 0, hosted=hosted, quick=quick)])
            wait_for([record], 120.0)
            if str(record.state) != "COMPLETED":
                raise SystemExit(f"a job alone did not complete: {record.state} {record.reason}")
            found.append(took_s(record))
        step_s = (found[-1] - found[-2]) / (CALIBRATION[1] - CALIBRATION[0])
        kinds[hosted] = Kind(max(found[-2] - CALIBRATION[0] * step_s, 0.0), step_s)
        say(f"{'hosted' if hosted else 'program'}: start {kinds[hosted].start_s:.2f} s, step {1e3 * step_s:.1f} ms")
    daemon.close()
    return kinds


def forecast(kinds: dict[bool, Kind], policy: str, cluster: Any) -> tuple[float, float]:
    """The mean completion time and the makespan that the simulator expects."""
    jobs = [
        JobSpec(
            f"job{number}",
            submitted_s=number * EVERY_S,
            gpus=1,
            duration_s=kinds[number % 2 == 1].start_s + steps * kinds[number % 2 == 1].step_s,
            checkpoint_s=SWITCH_S,
        )
        for number, steps in enumerate(LENGTHS)
    ]
    # Live jobs are gangs. With a clock of hundredths, simulated ones are as well, also for policies of tasks.
    about: dict[str, Any] = {"min_run_s": MIN_RUN_S, "suspend_cost_s": SWITCH_S, "time_quantum_s": 0.01}
    rules = Rules("end to end", spread_matters=False, **about)
    result = simulate(Workload.of(jobs), cluster=cluster, policy=policy, rules=rules, placement="packed")
    assert result.mean_jct_s is not None
    assert result.makespan_s is not None
    return result.mean_jct_s, result.makespan_s


def run(folder: Path, machine: Machine, policy: str, kinds: dict[bool, Kind], quick: bool) -> dict[str, Any]:
    """All jobs under one policy, live, beside what was forecast."""
    jct_s, makespan_s = forecast(kinds, policy, machine.cluster)
    daemon = Daemon(Options(folder / policy.partition(":")[0], policy=policy), machine, min_run_s=MIN_RUN_S)
    daemon.start()
    records: list[JobRecord] = []
    began_s = time.monotonic()
    for number, steps in enumerate(LENGTHS):
        time.sleep(max(began_s + number * EVERY_S - time.monotonic(), 0.0))
        kind = kinds[number % 2 == 1]
        about: dict[str, Any] = {
            "hosted": number % 2 == 1,
            "quick": quick,
            "expected_s": kind.start_s + steps * kind.step_s,
        }
        records += daemon.scheduler.submit([request(steps, number, **about)])
    wait_for(records, 400.0)
    live_jct_s = statistics.fmean(map(took_s, records))
    live_makespan_s = max(one.ended_s or 0.0 for one in records) - min(one.submitted_s for one in records)
    daemon.close()
    told = {
        "policy": policy,
        "states": sorted({str(record.state) for record in records}),
        "preemptions": sum(record.preemptions for record in records),
        "mean_jct_s": round(live_jct_s, 2),
        "forecast_jct_s": round(jct_s, 2),
        "makespan_s": round(live_makespan_s, 2),
        "forecast_makespan_s": round(makespan_s, 2),
    }
    say(
        f"{policy:50} mean JCT {live_jct_s:6.1f} s (forecast {100 * (jct_s / live_jct_s - 1):+.1f} %)   "
        f"makespan {live_makespan_s:6.1f} s ({100 * (makespan_s / live_makespan_s - 1):+.1f} %)   "
        f"{told['preemptions']} preemptions"
    )
    return told


def main() -> None:
    """Run all policies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--quick", action="store_true", help="jobs that only wait, on a virtual GPU")
    asked = parser.parse_args()
    machine = virtual_machine(1) if asked.quick else found_machine("nvidia")
    with tempfile.TemporaryDirectory(prefix="fairway-gpu-") as name:
        kinds = calibrated(Path(name), machine, asked.quick)
        runs = [run(Path(name), machine, policy, kinds, asked.quick) for policy in asked.policy or POLICIES]
    document: dict[str, Any] = {"gpu": machine.text, "date": time.strftime("%Y-%m-%d"), "runs": runs}
    document["kinds"] = {"program": kinds[False]._asdict(), "hosted": kinds[True]._asdict()}
    asked.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
