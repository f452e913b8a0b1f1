"""Four real trainings on four virtual GPUs: batches and GPUs by `pollux`, against fixed batches under `tiresias`.

    python benchmarks/goodput_live.py [--seeds 1 2 3] [--python PYTHON_WITH_TORCH] [--picture FILE.svg]

Each job trains with PyTorch (DDP over gloo) until its loss reaches a target. A pass takes 60 ms and 1 ms per sample, as
on a GPU that a small batch does not fill. What the live run has shown (step times, noise scales, the cost of a start)
is given to the simulator. Its forecast stands beside the run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fairway
from fairway.core.batch import Timing, Tuning
from fairway.core.event import Event, JobMeasured
from fairway.core.job import JobSpec, Workload
from fairway.models.step_fit import averaged, fit
from fairway.models.step_time import StepModel, step_s
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.report.line_chart import Axis, line_chart, staircase
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.machine import virtual_machine
from fairway.simulator.rules import Rules
from fairway.simulator.run import simulate

GPUS, JOBS, ROUND_S = 4, 4, 5.0
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "adaptive_ddp" / "train.py"
PAUSES = ("0.06", "0.001")
LIMITS = (32, 1024, 8, 128)
STRETCHES = 8


class Trained(NamedTuple):
    """A live run: its jobs, what they have timed, and what their starts have cost."""

    records: list[JobRecord]
    timings: dict[int, list[Timing]]
    folder: Path
    origin_s: float

    @property
    def mean_jct_s(self) -> float:
        return statistics.fmean((one.ended_s or 0.0) - one.submitted_s for one in self.records)

    @property
    def makespan_s(self) -> float:
        return max(one.ended_s or 0.0 for one in self.records) - min(one.submitted_s for one in self.records)


def main() -> None:
    """Run both sides for each seed and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--target", default="0.1")
    parser.add_argument("--picture", type=Path, help="the life of the first job under pollux, of the last seed")
    options = parser.parse_args()
    print(f"{'seed':>4}  {'policy':<9}{'mean time to target':>20}{'all':>9}{'restarts':>10}{'largest batch':>15}")
    for seed in options.seeds:
        for policy in ("tiresias", "pollux"):
            with tempfile.TemporaryDirectory(prefix="fairway-goodput-") as folder:
                run = trained(policy, seed, Path(folder), options.python, options.target)
                largest = max(_batches(run))
                restarts = sum(len(one.attempts) - 1 for one in run.records)
                about = f"{run.mean_jct_s:>18.1f} s{run.makespan_s:>7.1f} s{restarts:>10}{largest:>15}"
                print(f"{seed:>4}  {policy:<9}{about}", flush=True)
                if policy == "pollux":
                    if options.picture is not None:
                        options.picture.write_text(life_of(run, run.records[0]), encoding="utf-8")
                    result = forecast(run)
                    off = (result.mean_jct_s or 0.0) / run.mean_jct_s - 1.0
                    about = f"{result.mean_jct_s or 0.0:>18.1f} s{result.makespan_s or 0.0:>7.1f} s"
                    print(f"{seed:>4}  {'forecast':<9}{about}   mean is off by {off:+.1%}", flush=True)


def trained(policy: str, seed: int, folder: Path, python: str, target: str) -> Trained:
    """Train four jobs, which come within half a minute, and wait for the last."""
    timings: dict[int, list[Timing]] = {}

    def listen(events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, JobMeasured) and event.timing is not None:
                timings.setdefault(event.job, []).append(event.timing)

    scheduler = Scheduler(
        folder,
        virtual_machine(GPUS).cluster,
        make_policy(policy),
        placement("packed"),
        round_s=ROUND_S,
        policy_text=policy,
        restart_s=5.0,
    )
    scheduler.listeners.append(listen)
    thread, dice = scheduler.start(), random.Random(seed)
    try:
        for number in range(JOBS):
            scheduler.submit([_request(f"{seed}{number}", python, target)])
            time.sleep(dice.uniform(2.0, 12.0) if number < JOBS - 1 else 0.0)
        while any(not one.state.ended for one in scheduler.store):
            time.sleep(0.1)
    finally:
        scheduler.end_all()
        scheduler.close()
        thread.join()
    records = list(scheduler.store)
    failed = [f"{one.id}: {one.reason}" for one in records if one.state is not JobState.COMPLETED]
    if failed:
        raise RuntimeError(f"jobs did not complete: {'; '.join(failed)}")
    return Trained(records, timings, folder, scheduler.clock.origin_s)


def _request(seed: str, python: str, target: str) -> JobRequest:
    command = (python, str(EXAMPLE), "--seed", seed, "--target", target, "--pause", *PAUSES)
    env = {"PYTHONPATH": str(Path(fairway.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    about = {"gpus_min": 1, "gpus_max": GPUS, "processes": "per_gpu", "preempt": "checkpoint", "env": env}
    return JobRequest.from_plain({"command": list(command), "cwd": "/", "user": "load", "gpus": 1, **about})


def _reports(run: Trained, record: JobRecord) -> list[dict[str, Any]]:
    text = (run.folder / "jobs" / record.id / "reports.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _batches(run: Trained) -> list[int]:
    return [int(line["batch_size"]) for one in run.records for line in _reports(run, one) if "batch_size" in line]


def life_of(run: Trained, record: JobRecord) -> str:
    """GPUs, batch and efficiency of a job over its life, as a picture."""
    first, began_s = LIMITS[0], record.submitted_s
    gpus = [(attempt.launched_s - began_s, len(attempt.gpus)) for attempt in record.attempts]
    gpus.append(((record.ended_s or began_s) - began_s, gpus[-1][1]))
    told = [line for line in _reports(run, record) if "noise_scale" in line and "batch_size" in line]
    seen = [(line["time"] - began_s, line["batch_size"], line["noise_scale"]) for line in told]
    most_gpus, most_batch = max(count for _, count in gpus), max(batch for _, batch, _ in seen)
    lines = {
        f"GPUs, of {most_gpus}": staircase([(at_s, count / most_gpus) for at_s, count in gpus]),
        f"batch, of {most_batch:,}": staircase([(at_s, batch / most_batch) for at_s, batch, _ in seen]),
        "efficiency": [(at_s, (noise + first) / (noise + batch)) for at_s, batch, noise in seen],
    }
    share = Axis("part of the most that it had, and of full efficiency", " %", 100.0, 100.0)
    return line_chart(
        "Live, under pollux: one of four trainings", lines, Axis("time since its submission", " s"), share
    )


def forecast(run: Trained) -> fairway.Result:
    """The same jobs in the simulator, as the live run has shown them."""
    seen = [timing for timings in run.timings.values() for timing in timings]
    model = fit(averaged(seen))
    if model is None:
        raise RuntimeError("no job has timed its steps")
    starts_s = [start_s for one in run.records for start_s in _starts_s(run, one)]
    stops_s = [attempt.stop_s for one in run.records for attempt in one.attempts if attempt.stop_s is not None]
    cost_s, slower = (sum(starts_s) + sum(stops_s)) / len(starts_s), _between_steps(run)
    model = StepModel(*(float(value) * factor for value, factor in zip(model, [slower] * 6 + [1.0], strict=True)))
    jobs = [_spec(run, one, model, cost_s) for one in run.records]
    rules = Rules("twin", spread_matters=False, adapts="regimes", charge="start")
    cluster = virtual_machine(GPUS).cluster
    return simulate(
        Workload.of(jobs), cluster=cluster, policy="pollux", rules=rules, round_s=ROUND_S, placement="packed"
    )


def _starts_s(run: Trained, record: JobRecord) -> list[float]:
    """How long each attempt took from its launch to its first step, in seconds."""
    begun = [line["time"] for line in _reports(run, record) if line.get("started") and "batch_limits" in line]
    return [begin_s - attempt.launched_s for begin_s, attempt in zip(begun, record.attempts, strict=False)]


def _between_steps(run: Trained) -> float:
    """How many times as long training takes as its steps, because of what lies between them."""
    parts = []
    for record in run.records:
        for line in _reports(run, record):
            if line.get("timing") and line.get("samples_per_s"):
                gpus, local, accumulation, took_s = line["timing"]
                parts.append(gpus * local * (accumulation + 1) / took_s / line["samples_per_s"])
    return statistics.fmean(parts)


def _spec(run: Trained, record: JobRecord, model: StepModel, start_s: float) -> JobSpec:
    lines = [line for line in _reports(run, record) if "noise_scale" in line and "step" in line]
    total = max(line["step"] for line in lines)
    noise: list[tuple[float, float]] = []
    for at in range(STRETCHES):
        here = [one["noise_scale"] for one in lines if at / STRETCHES <= one["step"] / total <= (at + 1) / STRETCHES]
        noise.append(((at + 1) / STRETCHES, _mean_noise(here) if here else noise[-1][1] if noise else 0.0))
    return JobSpec(
        id=record.id,
        submitted_s=record.submitted_s - run.origin_s,
        gpus=1,
        gpus_min=1,
        gpus_max=GPUS,
        duration_s=total * float(step_s(model, 1, 1, LIMITS[0])),
        checkpoint_s=start_s,
        adaptation="tuned",
        tuning=Tuning(*LIMITS, tuple(float(value) for value in model), tuple(noise)),
    )


def _mean_noise(scales: Sequence[float]) -> float:
    """The noise scale at which a batch of usual size is worth the mean of what it is worth at these."""
    first, usual = LIMITS[0], 8 * LIMITS[0]
    worth = statistics.fmean((scale + first) / (scale + usual) for scale in scales)
    return (worth * usual - first) / (1.0 - worth)


if __name__ == "__main__":
    main()
