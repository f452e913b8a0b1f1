"""One scheduler per state directory: its lock, its address, its life from `up` to `down`.

When it is stopped on purpose, its jobs go on, are stopped, or are suspended in place. That is done while no scheduler
runs. The next scheduler finds the processes, or how they ended, and takes over.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fairway.core.errors import FairwayError, InputError
from fairway.core.event import Event
from fairway.core.plan import Placer
from fairway.core.policy import Policy
from fairway.placement import placement as placement_named
from fairway.policies import make_policy
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.log_watch import LogWatch
from fairway.runtime.daemon.place import found_place, ray_site
from fairway.runtime.daemon.retention import Retention
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import AUTO, REMEMBERED, Choice, Options, Settings
from fairway.runtime.daemon.watch import Watch
from fairway.runtime.jobs.estimates import RESTART_S
from fairway.runtime.jobs.records import JobRecord, JobState, StoredJob
from fairway.runtime.journal.database import Journal, is_blank
from fairway.runtime.journal.job_folders import folders_of, refuse_without_journal, take_over
from fairway.runtime.journal.recovery import STOOD_STILL, fingerprint, is_usable
from fairway.runtime.processes import keeper, local
from fairway.runtime.processes.keeper import started_at, write_over
from fairway.runtime.processes.local import Running
from fairway.runtime.processes.machine import Machine
from fairway.runtime.processes.ranks import CHECKPOINTED
from fairway.runtime.processes.ray_site import RaySite
from fairway.runtime.processes.remote_attempt import RemoteAttempt
from fairway.runtime.processes.site import Outcome, Over
from fairway.runtime.processes.trusted_path import refuse_untrusted

LEAVE = "leave"
"""What becomes of jobs by default when the scheduler stops: they go on without it."""
SUSPEND_S = 10.0
"""How long to wait until processes are suspended. A process inside a driver call may take some time."""


class AlreadyUpError(FairwayError):
    """Another scheduler uses this state directory."""


class Daemon:
    """A scheduler that has a state directory to itself.

    `about` is what it tells other processes about itself, once it is started. `remarks` says what is different from
    last time. `parting` says what becomes of the jobs, once it is closed: by default they go on.

    Everything that may be refused is checked before the scheduler is made, because making it changes the journal at
    once. So `listen` opens the TCP address, if there is one; `listener` is its result. `listen_web` does the same for
    the web page, and `page_listener` is its result; without an address of its own the page is where `listener` is.
    """

    def __init__(
        self,
        options: Options,
        machine: Machine | None = None,
        *,
        listen: Callable[[str], socket.socket] | None = None,
        listen_web: Callable[[str], socket.socket] | None = None,
        min_run_s: float | None = None,
        restart_s: float = RESTART_S,
    ) -> None:
        refuse_untrusted(options.folder)
        fresh = not options.folder.exists()
        options.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.options = options
        self.about: dict[str, Any] = {}
        self.remarks: list[str] = []
        self.parting = LEAVE
        self.listener: socket.socket | None = None
        self.page_listener: socket.socket | None = None
        with ExitStack() as undo:
            self._lock = locked(options.folder)
            undo.callback(os.close, self._lock)
            if fresh:
                undo.callback(shutil.rmtree, options.folder, ignore_errors=True)
            # Before the journal is opened: a blank one may be a lost one.
            refuse_without_journal(options.folder, Choice(options, {}).root(options.folder))
            self._journal = self._opened_journal()
            if self._journal is not None:
                undo.callback(self._journal.close)
            last = {} if self._journal is None else self._journal.facts()
            self.choice = Choice(options, last)
            self.choice.check_engine()
            self.root = self.choice.root(options.folder)
            self._make_root()
            self.settings = self._read_settings()
            self.choice.load_plugins()
            policy, placer = self._made_policy(), self._made_placement()
            with self.choice.blamed("gpus"), self.choice.blamed("engine"):
                self.place = found_place(self.choice, options.folder, last, machine)
            undo.callback(self.place.close)
            self.machine, self.site = self.place.machine, self.place.site
            self.settings.fit(self.machine.cluster, last)
            if listen is not None:
                self._listen(listen)
            if self.listener is not None:
                undo.callback(self.listener.close)
            if listen_web is not None:
                self._listen_web(listen_web)
            if self.page_listener is not None:
                undo.callback(self.page_listener.close)
            if self.choice.ray is None:
                self._take_over()
            spared_s = self.choice.min_run_s if min_run_s is None else min_run_s
            self.scheduler = self._made_scheduler(policy, placer, spared_s, restart_s)
            self.settings.govern(self.scheduler)
            self._watch = Watch(self.scheduler, self.settings, self.site)
            # Before any job can be started.
            self.scheduler.blocked.set(self.site.blocked())
            self.retention = Retention(self.scheduler, lambda: self.settings.config.retention, self._watch.tell)
            self._logs = LogWatch(self.scheduler, lambda: self.settings.config.defaults.log_progress, self._watch.tell)
            self._remember(last)
            undo.pop_all()
        self._thread: threading.Thread | None = None

    def _make_root(self) -> None:
        """Make the directory for the folders of jobs, if it is not the state directory."""
        if self.root == self.options.folder:
            return
        refuse_untrusted(self.root)
        try:
            self.root.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(f"--jobs {self.root}: {error.strerror}") from None

    def _opened_journal(self) -> Journal | None:
        """The journal, if there is one. To open it is to check it, which takes long if there are many jobs."""
        path = self.options.folder / "journal.db"
        return Journal(path) if path.exists() else None

    def _read_settings(self) -> Settings:
        self.choice.check_config()
        with self.choice.blamed("config"):
            return Settings(self.options.folder, self.choice.config)

    def _listen(self, listen: Callable[[str], socket.socket]) -> None:
        if self.choice.listen is not None:
            with self.choice.blamed("listen"):
                self.listener = listen(self.choice.listen)

    def _listen_web(self, listen: Callable[[str], socket.socket]) -> None:
        web = self.choice.web
        if web is not None and not (web == AUTO and self.listener is not None):
            with self.choice.blamed("web"):
                self.page_listener = listen(web)

    def _made_policy(self) -> Policy:
        with self.choice.blamed("policy"):
            return make_policy(self.choice.policy)

    def _made_placement(self) -> Placer:
        with self.choice.blamed("placement"):
            return placement_named(self.choice.placement)

    def _take_over(self) -> None:
        """Take over running jobs that the journal does not know, before GPUs are given to other jobs."""
        jobs = self.root / "jobs"
        found = take_over(self._journal, jobs) if self._journal is not None and jobs.is_dir() else ()
        if found:
            what = f"job {found[0]} has" if len(found) == 1 else f"jobs {', '.join(found)} have"
            it = "it is restored from its folder" if len(found) == 1 else "they are restored from their folders"
            self.remarks.append(
                f"{what} been started since the journal was last written: {it}, and all jobs are queued again. All "
                "other commands since then are lost"
            )

    def _made_scheduler(self, policy: Policy, placer: Placer, min_run_s: float | None, restart_s: float) -> Scheduler:
        return Scheduler(
            self.options.folder,
            self.machine.cluster,
            policy,
            placer,
            jobs_folder=self.root / "jobs",
            devices=self.machine.devices,
            round_s=self.choice.round_s,
            policy_text=self.choice.policy,
            terms=self.settings,
            min_run_s=min_run_s,
            restart_s=restart_s,
            site=self.site,
            here=self.choice.ray is None,
            journal=self._journal,
        )

    def _remember(self, last: Mapping[str, Any]) -> None:
        """Save the options for the next time. Say which of them, and what of the machine, are not as last time."""
        with self.scheduler.journal.transaction():
            self.scheduler.journal.set_facts({**self.choice.facts(), **self.place.facts})
        self.remarks += self.choice.remarks()
        if self.scheduler.problem:
            self.remarks.append(self.scheduler.problem)
        now = fingerprint(self.machine.cluster, self.machine.devices)
        before = last.get("machine")
        if before is not None and not is_usable(before, now):
            left = sum(not record.state.ended for record in self.scheduler.store)
            jobs = "1 job that has not ended is" if left == 1 else f"{left:,} jobs that have not ended are"
            told = f"; {jobs} queued again" if left else ""
            self.remarks.append(f"the GPUs are others than last time: {_told(now)}, before {_told(before)}{told}")
        unknown = _jobs_without_record(self.scheduler)
        if unknown:
            jobs = "1 job that has a folder" if unknown == 1 else f"{unknown:,} jobs that have folders"
            self.remarks.append(
                f"the journal knows nothing of {jobs} in {self.scheduler.jobs_folder}: it was replaced, or its "
                "write-ahead log was lost. Move away the folders that are not needed"
            )

    @property
    def operators(self) -> tuple[str, ...]:
        """The users who may control all jobs, besides root and the user who runs the scheduler."""
        return self.settings.config.operators

    @property
    def foreign(self) -> dict[int, str]:
        """The blocked GPUs, by number with the reason: foreign processes compute there, or they are out of order."""
        return dict(self.scheduler.blocked.why)

    def reload(self) -> str | None:
        """Read the configuration again. Returns the file, if there is one. On an error the old configuration stays."""
        self.settings.reload(self.scheduler).result()
        return str(self.settings.path) if self.settings.read else None

    @property
    def socket(self) -> Path:
        """The Unix socket on which it listens."""
        return self.options.folder / "fairway.sock"

    def start(self, **about: Any) -> None:
        """Schedule in a thread, and write down for other processes who we are."""
        self._thread = self.scheduler.start()
        for line in (*self.remarks, *(f"{line}; it is not used" for line in self.machine.left_out)):
            self._watch.tell(line)
        for line in self.scheduler.blocked.words:
            self._watch.tell(line)
        self._watch.start()
        self.retention.start()
        self._logs.start()
        self.tell(pid=os.getpid(), start=started_at(os.getpid()), socket=str(self.socket), **about)

    def tell(self, **about: Any) -> None:
        """Write down for other processes what else there is to know about us."""
        self.about = {**self.about, **about}
        write_over(self.options.folder / "daemon.json", self.about)

    def remember_web(self, address: str) -> None:
        """A port was opened for the web page: the next scheduler opens it as well."""

        def command(now_s: float) -> tuple[list[Event], None]:
            self.scheduler.writer.keep({REMEMBERED["web"].fact: address})
            return [], None

        self.scheduler.engine.ask(command)

    def close(self) -> None:
        """Stop scheduling. Jobs go on running. The next scheduler of this directory takes them over."""
        self._watch.close()
        self.retention.close()
        self._logs.close()
        self.scheduler.close()
        if self._thread is not None:
            self._thread.join()
        self.place.close()
        self.parting = str((running_daemon(self.options.folder) or {}).get("parting", LEAVE))
        with suppress(OSError):
            # On a read-only file system it stays. It names a process that is gone.
            (self.options.folder / "daemon.json").unlink(missing_ok=True)
        for one in (self.listener, self.page_listener):
            if one is not None:
                one.close()
        os.close(self._lock)


def running_daemon(folder: Path) -> dict[str, Any] | None:
    """What the scheduler of a state directory tells about itself; None if none runs."""
    try:
        told: dict[str, Any] = json.loads((folder / "daemon.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told if started_at(told["pid"]) == told["start"] else None


def locked(folder: Path) -> int:
    """Lock a state directory. Returns a file descriptor; the lock lasts until it is closed."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise AlreadyUpError(f"a scheduler is already running in {folder}") from None
    return fd


def facts_of_last_time(folder: Path) -> dict[str, Any]:
    """The facts of the journal; none if there is no journal yet."""
    refuse_untrusted(folder)
    if not (folder / "journal.db").exists():
        return {}
    with closing(Journal(folder / "journal.db")) as journal:
        return journal.facts()


def _told(machine: Any) -> str:
    """The GPUs of a machine as the journal has them, in words."""
    try:
        return ", ".join(f"{gpus} × {kind}" for kind, gpus, *_ in machine[0])
    except (TypeError, ValueError, IndexError):
        return "unknown ones"


def _jobs_without_record(scheduler: Scheduler) -> int:
    """How many jobs have a folder but no record. New jobs get ids after them, so that each has its own folder."""
    known = scheduler.journal.names()
    names = [one.name for one in folders_of(scheduler.jobs_folder) if one.name not in known]
    numbers = [int(name.partition("_")[0]) for name in names]
    scheduler.store.skip(0, max((number + 1 for number in numbers), default=0))
    return len(numbers)


class Stopped(NamedTuple):
    """How many jobs were stopped, and how many of these have no checkpoint to go on from."""

    jobs: int
    from_the_beginning: int


def announce(folder: Path, told: Mapping[str, Any], jobs: str) -> None:
    """Tell a scheduler what will become of its jobs, so that it can say so. `told` is what it wrote about itself.

    Nothing else depends on it, so it is no error if this cannot be written.
    """
    with suppress(OSError):
        keeper.write_over(folder / "daemon.json", {**told, "parting": jobs})


def stop_jobs(folder: Path) -> Stopped:
    """Ask the processes of all jobs to save and stop, and wait for them. The next scheduler starts them again."""
    with _alone(folder):
        if _choice(folder).ray is not None:
            return _stop_on_ray(folder)
        running = _running(folder)
        for one in running:
            one.stop()
        for one in running:
            while not one.ended:
                time.sleep(0.05)
            one.close()
        records = {job.id: JobRecord.from_plain(job.record) for job in _jobs(folder)}
        return Stopped(len(running), sum(_begins_again(one, records.get(one.directory.parent.name)) for one in running))


def suspend_jobs(folder: Path) -> int:
    """Suspend the processes of all jobs in place. Returns how many jobs had been running.

    The next scheduler lets them go on. The time while they are suspended does not count as run time; the journal tells
    the next scheduler when it began.
    """
    with _alone(folder):
        if _choice(folder).ray is not None:
            return _book(folder, _suspend_on_ray(folder))
        running = _running(folder)
        for one in running:
            one.pause()
        deadline_s = time.monotonic() + SUSPEND_S
        for one in running:
            while _moves(one) and not one.ended and time.monotonic() < deadline_s:
                time.sleep(0.02)
            one.close()
        return _book(folder, {one.directory.parent.name for one in running})


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    if not folder.is_dir():
        yield
        return
    lock = locked(folder)
    try:
        yield
    finally:
        os.close(lock)


def _choice(folder: Path) -> Choice:
    """The options of the last scheduler."""
    # A blank journal may be a lost one: it is not touched.
    return Choice(Options(folder), {} if is_blank(folder / "journal.db") else facts_of_last_time(folder))


def _stop_on_ray(folder: Path) -> Stopped:
    """Ask the processes of all jobs on other machines to save and stop, and wait for them."""
    with closing(ray_site(_choice(folder), folder, facts_of_last_time(folder))) as site:
        running = _running_on(site, folder)
        for attempt in running:
            attempt.stop()
        left, again = dict(running), 0
        while left:
            for news in site.wait(1.0):
                if isinstance(news, Over) and isinstance(news.handle, RemoteAttempt):
                    again += _from_the_beginning(news.outcome, left.pop(news.handle, None))
        return Stopped(len(running), again)


def _suspend_on_ray(folder: Path) -> set[str]:
    """Suspend the processes of all jobs on other machines. Returns the ids of the jobs."""
    with closing(ray_site(_choice(folder), folder, facts_of_last_time(folder))) as site:
        running = _running_on(site, folder)
        for attempt in running:
            attempt.pause()
        deadline_s = time.monotonic() + SUSPEND_S
        while any(part.words or part.state == "finding" for one in running for part in one.parts):
            site.wait(0.1)
            if time.monotonic() > deadline_s:
                break
        return {record.id for record in running.values()}


def _running_on(site: RaySite, folder: Path) -> dict[RemoteAttempt, JobRecord]:
    """The attempts on other machines that may still run."""
    jobs, found = _choice(folder).root(folder) / "jobs", dict[RemoteAttempt, JobRecord]()
    for job in _jobs(folder):
        record = JobRecord.from_plain(job.record)
        attempt = record.attempt
        if attempt is not None and attempt.ended_s is None:
            one = site.find(jobs / record.id / f"attempt-{attempt.number}", attempt.token)
            if isinstance(one, RemoteAttempt):
                found[one] = record
    return found


def _running(folder: Path) -> list[Running]:
    jobs = _choice(folder).root(folder) / "jobs"
    found = [local.find_attempt(attempt) for attempt in sorted(jobs.glob("*/attempt-*"))]
    return [one for one in found if isinstance(one, Running)]


def _moves(one: Running) -> bool:
    states = [(keeper.stat_fields(pid) or "X")[0] for pid in keeper.descendants(one.pid)]
    return any(state not in "TtZX" for state in states)


def _jobs(folder: Path) -> list[StoredJob]:
    """The jobs that have not ended."""
    # A blank journal may be a lost one: it is not touched.
    if is_blank(folder / "journal.db"):
        return []
    with closing(Journal(folder / "journal.db")) as journal:
        return list(journal.jobs(ended=False))


def _begins_again(one: Running, record: JobRecord | None) -> bool:
    """Whether a stopped job has to start from the beginning: it has no checkpoint, and it was not done."""
    return _from_the_beginning(local.outcome_of(one.directory), record)


def _from_the_beginning(outcome: Outcome | None, record: JobRecord | None) -> bool:
    codes = () if outcome is None else outcome.codes
    done = bool(codes) and not any(codes)
    return not done and CHECKPOINTED not in codes and (record is None or record.progress.checkpoint is None)


def _book(folder: Path, names: set[str]) -> int:
    """Write down how long the jobs that have just been suspended had run. Returns how many there are."""
    records = [JobRecord.from_plain(job.record) for job in _jobs(folder) if job.id in names]
    stood = [record for record in records if record.state is JobState.RUNNING]
    if stood:
        clock = Clock(facts_of_last_time(folder))
        date_s = clock.date_s(clock.now_s())
        for record in stood:
            record.count_until(date_s)
        with closing(Journal(folder / "journal.db")) as journal, journal.transaction():
            journal.save_jobs(record.stored() for record in stood)
            # If the jobs are suspended already, the date of the first time stays.
            if journal.facts().get(STOOD_STILL) is None:
                journal.set_facts({STOOD_STILL: date_s})
    return len(stood)
