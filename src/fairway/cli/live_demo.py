"""`fairway demo --live`: a dozen small real trainings on four virtual GPUs, compared with a forecast."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from fairway.cli.live import program
from fairway.core.errors import FairwayError

if TYPE_CHECKING:
    from rich.table import Table

    from fairway.core.job import Workload
    from fairway.runtime.daemon.daemon import Daemon
    from fairway.runtime.daemon.scheduler import Scheduler
    from fairway.runtime.jobs.records import JobRecord
    from fairway.runtime.jobs.request import JobRequest

GPUS, POLICY, JOBS = 4, "tiresias:queues=4/12", 12
STEP_S, START_S, MIN_RUN_S = 0.05, 0.3, 1.0
"""A step of a training; what it takes to start one, and how long it is then left alone."""
STEP_COST = 1.02
"""What a step takes beyond the time that it sleeps."""
PATIENCE_S = 180.0


class PlannedTraining(NamedTuple):
    """A training to submit, `at_s` seconds after the first."""

    at_s: float
    user: str
    gpus: int
    steps: int
    preempt: Any

    @property
    def length_s(self) -> float:
        """How long it takes alone."""
        return self.steps * STEP_S * STEP_COST + START_S


_DOZEN = (
    PlannedTraining(0.0, "ana", 2, 160, "checkpoint"),
    PlannedTraining(0.2, "ana", 1, 240, "checkpoint"),
    PlannedTraining(0.4, "ben", 1, 200, "suspend"),
    PlannedTraining(2.0, "ben", 1, 40, "checkpoint"),
    PlannedTraining(3.0, "cho", 4, 60, "checkpoint"),
    PlannedTraining(4.0, "cho", 1, 50, "suspend"),
    PlannedTraining(5.0, "dia", 2, 100, "suspend"),
    PlannedTraining(6.0, "dia", 1, 30, "checkpoint"),
    PlannedTraining(7.0, "ana", 1, 60, "suspend"),
    PlannedTraining(8.0, "ben", 2, 80, "checkpoint"),
    PlannedTraining(9.0, "cho", 1, 120, "checkpoint"),
    PlannedTraining(10.0, "dia", 1, 40, "suspend"),
)


def live_demo(jobs: int, seed: int, out: Path) -> None:
    """Start a scheduler, let several users submit real jobs, show them, and compare with a forecast."""
    from fairway.cli.live_result import Tape
    from fairway.cli.output import count

    plans = _plans(jobs, seed)
    forecast = _forecast(plans)
    users = len({plan.user for plan in plans})
    typer.echo(f"{count(len(plans), 'real job')} of {users} users on {GPUS} virtual GPUs under {POLICY}")
    typer.echo(f"the simulator expects the last to end after {forecast.makespan_s:.0f} s\n")
    with _scheduler() as scheduler:
        tape = Tape(scheduler, len(plans))
        with _screen(scheduler) as show:
            _run(scheduler, plans, show)
        if not tape.wait(len(plans), PATIENCE_S):
            raise FairwayError("the scheduler no longer answers; the machine may be too busy")
        live = tape.result(f"{POLICY} (live)", "demo")
        records = list(scheduler.store)
    documents = [live.to_dict(), {**forecast.to_dict(), "policy": f"{POLICY} (simulated)"}]
    page = out / "report.html"
    _write_report(documents, page)
    _compare(records, live, forecast)
    name = program()
    typer.echo(
        f"\nreport    {page}    (open it in a browser)\n"
        f"\nnext\n"
        f"  {name} up --gpus {GPUS} &                          a scheduler; with `auto`, of this machine's GPUs\n"
        f"  {name} submit --gpus 1 -- python train.py     a job; `ls`, `why`, `logs -f` tell about it\n"
        f"  {name} demo                                   all policies on 300 simulated jobs"
    )


def _plans(jobs: int, seed: int) -> list[PlannedTraining]:
    """A dozen jobs, or as many as asked for in the same manner; another seed, other lengths."""
    import random

    dice, plans = random.Random(seed), []
    for at in range(jobs):
        turn, plan = at // len(_DOZEN), _DOZEN[at % len(_DOZEN)]
        steps = plan.steps if seed == 0 else max(round(plan.steps * dice.uniform(0.6, 1.4)), 10)
        plans.append(plan._replace(at_s=plan.at_s + 12.0 * turn, steps=steps))
    return plans


def _forecast(plans: Sequence[PlannedTraining]) -> Any:
    """The simulator's forecast for these jobs, before any of them is started."""
    import fairway
    from fairway.runtime.processes.machine import virtual_machine
    from fairway.simulator.rules import Rules

    rules = Rules("live", min_run_s=MIN_RUN_S, restart_cost_s=START_S)
    return fairway.simulate(_workload(plans), cluster=virtual_machine(GPUS).cluster, policy=POLICY, rules=rules)


def _workload(plans: Sequence[PlannedTraining]) -> Workload:
    from fairway.core.job import JobSpec, Workload

    jobs = [
        JobSpec(
            id=str(at + 1),
            submitted_s=plan.at_s,
            gpus=plan.gpus,
            duration_s=plan.length_s,
            user=plan.user,
            checkpoint_s=0.0 if plan.preempt == "suspend" else None,
        )
        for at, plan in enumerate(plans)
    ]
    return Workload.of(jobs, source="demo")


def _request(plan: PlannedTraining) -> JobRequest:
    from fairway.runtime.jobs.request import JobRequest

    return JobRequest(
        command=(sys.executable, "-m", "fairway.train.demo", str(plan.steps), str(STEP_S)),
        user=plan.user,
        name=f"{plan.steps} steps",
        gpus=plan.gpus,
        preempt=plan.preempt,
        expected_s=plan.length_s,
        steps=plan.steps,
        grace_s=10.0,
    )


@contextmanager
def _scheduler() -> Iterator[Scheduler]:
    """A scheduler with its own directory; both are removed afterwards."""
    from fairway.runtime.daemon.daemon import Daemon
    from fairway.runtime.daemon.settings import Options

    folder = Path(tempfile.mkdtemp(prefix="fairway-demo-"))
    daemon: Daemon | None = None
    try:
        options = Options(folder / "state", POLICY, gpus=str(GPUS))
        daemon = Daemon(options, min_run_s=MIN_RUN_S, restart_s=START_S)
        daemon.start()
        yield daemon.scheduler
    finally:
        if daemon is not None:
            daemon.scheduler.end_all()
            daemon.close()
        shutil.rmtree(folder, ignore_errors=True)


def _run(scheduler: Scheduler, plans: Sequence[PlannedTraining], show: Callable[[], None]) -> None:
    """Submit every job at its time, and wait for the last."""
    began_s, waiting = time.monotonic(), list(plans)
    while waiting or any(not record.state.ended for record in scheduler.store):
        now_s = time.monotonic() - began_s
        if now_s > PATIENCE_S + plans[-1].at_s:
            raise FairwayError(f"the jobs did not end within {PATIENCE_S:g} s; the machine may be too busy")
        while waiting and waiting[0].at_s <= now_s:
            scheduler.submit([_request(waiting.pop(0))])
        show()
        time.sleep(0.05)
    show()


@contextmanager
def _screen(scheduler: Scheduler) -> Iterator[Callable[[], None]]:
    """How jobs are shown: a table that changes on a terminal, a line per change elsewhere."""
    if not sys.stdout.isatty():
        yield StatePrinter(scheduler)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(_table(scheduler), console=Console(), refresh_per_second=8) as live:
        yield lambda: live.update(_table(scheduler))


_WAYS = {"checkpoint": "which saves and stops when asked", "suspend": "which cannot save its state"}


class StatePrinter:
    """Prints a line whenever the state of a job changes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._seen: dict[str, tuple[str, int]] = {}
        self._began_s = time.time()

    def __call__(self) -> None:
        for record in self._scheduler.store:
            now = (str(record.state), record.preemptions)
            if self._seen.get(record.id) != now:
                first = record.id not in self._seen
                self._seen[record.id] = now
                gpus = self._scheduler.state.held_gpus.get(record.number, ())
                text = _told(record, first, gpus)
                typer.echo(f"{time.time() - self._began_s:6.1f} s  job {record.id:>2}  {text}")


def _told(record: JobRecord, first: bool, held: Sequence[int]) -> str:
    """The new state of a job, in words."""
    request = record.request
    if first and record.state.waits:
        gpus = f"{request.gpus} GPU{'s' * (request.gpus > 1)}"
        return f"submitted by {request.user}: {request.name} on {gpus}, {_WAYS[request.preempt]}"
    if record.state == "RUNNING":
        again = "resumes" if record.preemptions else "starts"
        return f"{again} on GPU {', '.join(map(str, held))} at step {record.progress.step:.0f}"
    if record.state == "PREEMPTED":
        return "is asked to save and stop, so that others get their share"
    if record.state == "SUSPENDED":
        return "is suspended in place, so that others get their share"
    loss = "" if record.progress.loss is None else f", last loss {record.progress.loss:.3f}"
    return f"{str(record.state).lower()} after {_span_s(record):.1f} s{loss}"


def _span_s(record: JobRecord) -> float:
    return (record.ended_s or time.time()) - record.submitted_s


def _table(scheduler: Scheduler) -> Table:
    from rich.table import Table

    table = Table("job", "user", "GPUs", "state", "steps", "", "loss", "stopped", box=None, padding=(0, 1))
    for record in scheduler.store:
        steps, done = record.request.steps or 1.0, record.progress.step
        if record.state == "COMPLETED":
            done = steps
        bar = ("#" * round(20 * done / steps)).ljust(20, "·")
        gpus = scheduler.state.held_gpus.get(record.number, ())
        on = f" on {','.join(map(str, gpus))}" if gpus and record.state == "RUNNING" else ""
        loss = "" if record.progress.loss is None else f"{record.progress.loss:.3f}"
        about = (record.id, record.request.user, str(record.request.gpus), f"{str(record.state).lower()}{on}")
        table.add_row(*about, f"{done:.0f}/{steps:.0f}", bar, loss, str(record.preemptions or ""))
    return table


def _compare(records: Sequence[JobRecord], live: Any, forecast: Any) -> None:
    """Every job beside its forecast, and the totals of both."""
    from rich.table import Table

    from fairway.cli import output

    table = Table("job", "user", box=None, padding=(0, 2))
    for heading in ("GPUs", "stopped", "took", "forecast"):
        table.add_column(heading, justify="right")
    for at, record in enumerate(records):
        about = (record.id, record.request.user, str(record.request.gpus), str(record.preemptions or ""))
        table.add_row(*about, f"{_span_s(record):.1f} s", f"{forecast.jct_s[at]:.1f} s")
    whole = Table("", "live", "simulated", "difference", box=None, padding=(0, 2))
    for name, key in (("last job ended after", "makespan_s"), ("mean time of a job", "mean_jct_s")):
        seen, told = getattr(live, key), getattr(forecast, key)
        whole.add_row(name, f"{seen:.1f} s", f"{told:.1f} s", f"{100 * (told / seen - 1):+.1f} %")
    stops = int(live.ledger.preemptions.sum()), int(forecast.ledger.preemptions.sum())
    whole.add_row("preemptions", *map(str, stops), "")
    whole.add_row("GPUs in use", output.percent(live.utilisation), output.percent(forecast.utilisation), "")
    output.show("", table, "", whole)


def _write_report(documents: Sequence[Mapping[str, Any]], page: Path) -> None:
    from fairway.cli.compare import write_results

    write_results(list(documents), html=str(page), csv=None)
