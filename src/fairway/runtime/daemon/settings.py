"""What the operator has set: the options of `fairway up`, and the configuration in force.

An option that is not given has the value of last time. Each option has a word for its default. The values in force are
kept in the journal, so that a scheduler that any user starts again after a crash has the same limits as before.

The configuration is read at the start, when its file changes, and on request. A file with an error changes nothing: the
scheduler goes on with the old configuration and says what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.errors import FairwayError, InputError
from fairway.core.event import Event
from fairway.core.snapshot import Snapshot
from fairway.placement.tenants import Tenants
from fairway.policies import load_plugin
from fairway.runtime.daemon.bounds import BoundsGuard
from fairway.runtime.daemon.config import (
    NO_CONFIG,
    Config,
    ConfigError,
    amended,
    changed_terms,
    given,
    parse_config,
    queue_named,
    read_config,
    refuse,
    refuse_too_many,
)
from fairway.runtime.daemon.gpu_sharing import SharingWish
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.guard.limits import Limits
from fairway.runtime.guard.policy_guard import Cut
from fairway.runtime.guard.tenancy import bounded_grace, ranked, refuse_fixed, refuse_in_tenants, virtual_clusters
from fairway.runtime.jobs.holdings import Load
from fairway.runtime.jobs.life import Command
from fairway.runtime.jobs.live_jobs import LiveJobs
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.movable_memory import half_of_memory

DEFAULT_POLICY, DEFAULT_GPUS, DEFAULT_PLACEMENT = "tiresias", "auto", "packed"
AUTO, NONE = "auto", "none"
"""The words that set an option back to its default."""
FILE_NAME = "fairway.toml"
CELLS = "cells"
"""The fact of the journal about cells: the racks of nodes, and the GPU type of cells that name none."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
LOCAL, RAY = "local", "ray"
"""The engines: this machine, or the machines of a Ray cluster."""


@dataclass(frozen=True)
class Options:
    """How to run. None means as last time.

    The default is "none" for `config` and `listen`, "auto" for `round_s` and `min_run_s`. `plugins` are Python files
    with the operator's own policies. Without a `config`, the file in the state directory is used. `listen` is a
    loopback address, besides the socket; the API opens it. `web` is one for the web page; "auto" is its default.
    `engine` is "local", or "ray:ADDRESS" for the machines of a Ray cluster. `jobs` is a directory for the folders of
    jobs, instead of the state directory.
    """

    folder: Path
    policy: str | None = None
    round_s: float | str | None = None
    gpus: str | None = None
    placement: str | None = None
    config: Path | str | None = None
    plugins: tuple[str, ...] | None = None
    listen: str | None = None
    open_to_all: bool | None = None
    engine: str | None = None
    jobs: Path | str | None = None
    web: str | None = None
    min_run_s: float | str | None = None


class Remembered(NamedTuple):
    """A saved option: its name, the name of its fact in the journal, and its default.

    `undo` is what to type to get the default back, and `effect` what that does. The policy has neither. It can be
    changed while the scheduler runs, so the scheduler saves it.
    """

    option: str
    fact: str
    usual: Any
    undo: str = ""
    effect: str = ""

    def given(self, value: Any) -> str:
        """The option as it is typed."""
        if value is True:
            return self.option
        return f"{self.option} {f'{value:g}' if isinstance(value, float) else value}"


REMEMBERED = {
    "policy": Remembered("--policy", "policy", DEFAULT_POLICY),
    "gpus": Remembered("--gpus", "gpus", DEFAULT_GPUS, "--gpus auto", "takes what this machine has"),
    "plugins": Remembered("--plugin", "plugins", (), "--plugin none", "loads none"),
    # The facts `config` and `round` have other uses: the text that was last in force, and the number of rounds.
    "config": Remembered("--config", "config_file", NONE, "--config none", "goes back to the state directory's own"),
    "round_s": Remembered("--round", "round_s", AUTO, "--round auto", "leaves it to the policy"),
    "placement": Remembered("--placement", "placement", DEFAULT_PLACEMENT, "--placement packed", "is the default"),
    "listen": Remembered("--listen", "listen", NONE, "--listen none", "does not open a port"),
    "web": Remembered("--web", "web", NONE, "--web none", "does not open a port for the page"),
    "engine": Remembered("--engine", "engine", LOCAL, "--engine local", "schedules this machine alone"),
    "jobs": Remembered("--jobs", "jobs_directory", NONE, "--jobs none", "keeps them in the state directory"),
    "min_run_s": Remembered("--min-run", "min_run_s", AUTO, "--min-run auto", "is by what restarts of jobs cost"),
    "open_to_all": Remembered("--open-to-all", "open_to_all", False, "--no-open-to-all", "keeps others out"),
}
"""All saved options, by their field of `Options`."""


class Choice:
    """The values in force: as given, else as last time, else the default. `last` are the facts of the journal."""

    def __init__(self, options: Options, last: Mapping[str, Any]) -> None:
        self._given = {name: _kept(name, getattr(options, name)) for name in REMEMBERED}
        self._values = {name: self._value(name, one, last) for name, one in REMEMBERED.items()}

    def _value(self, name: str, one: Remembered, last: Mapping[str, Any]) -> Any:
        for value in (self._given[name], _kept(name, last.get(one.fact))):
            if value is not None:
                return value
        return one.usual

    @property
    def policy(self) -> str:
        """The policy."""
        return str(self._values["policy"])

    @property
    def gpus(self) -> str:
        """The GPUs to use, as for `found_machine`."""
        return str(self._values["gpus"])

    @property
    def plugins(self) -> tuple[str, ...]:
        """Files with the operator's own policies."""
        return tuple(self._values["plugins"])

    @property
    def config(self) -> Path | None:
        """The configuration file; None for the one in the state directory, if there is one."""
        found = self._unless_usual("config")
        return None if found is None else Path(found)

    @property
    def round_s(self) -> float | None:
        """Seconds between decisions; None for the policy's own value."""
        found = self._unless_usual("round_s")
        return None if found is None else float(found)

    @property
    def min_run_s(self) -> float | None:
        """Seconds for which a job that has just started is left alone; None if that is by what restarts of it cost."""
        found = self._unless_usual("min_run_s")
        return None if found is None else float(found)

    @property
    def placement(self) -> str:
        """The placement."""
        return str(self._values["placement"])

    @property
    def listen(self) -> str | None:
        """A loopback address to listen on, besides the socket."""
        found = self._unless_usual("listen")
        return None if found is None else str(found)

    @property
    def web(self) -> str | None:
        """A loopback address for the web page, or "auto"."""
        found = self._unless_usual("web")
        return None if found is None else str(found)

    @property
    def open_to_all(self) -> bool:
        """Whether other users may submit."""
        return bool(self._values["open_to_all"])

    @property
    def ray(self) -> str | None:
        """The address of the Ray cluster to run on; None to run on this machine."""
        return _ray_address(str(self._values["engine"]))

    def root(self, folder: Path) -> Path:
        """The directory that has the folders of jobs. `folder` is the state directory."""
        found = self._unless_usual("jobs")
        return folder if found is None else Path(found)

    def _unless_usual(self, name: str) -> Any:
        value = self._values[name]
        return None if value == REMEMBERED[name].usual else value

    def facts(self) -> dict[str, Any]:
        """The facts to keep in the journal for the next time."""
        return {one.fact: self._values[name] for name, one in REMEMBERED.items() if one.undo}

    def remarks(self) -> list[str]:
        """One line for each option that is as last time but not the default, with how to get the default back."""
        lines = []
        for name, one in REMEMBERED.items():
            value = self._values[name]
            if one.undo and self._given[name] is None and value != one.usual:
                several = value if isinstance(value, tuple) else (value,)
                lines += [f"{one.given(each)}, as last time (`{one.undo}` {one.effect})" for each in several]
        return lines

    @contextmanager
    def blamed(self, name: str) -> Iterator[None]:
        """If a value from last time cannot be used, add to the error where it is from and how to change it."""
        try:
            yield
        except FairwayError as error:
            one = REMEMBERED[name]
            if self._given[name] is not None or self._values[name] == one.usual:
                raise
            undo = f", or `{one.undo}`" if one.undo else ""
            raise InputError(f"{error} ({one.option} is that of last time; give another{undo})") from None

    def load_plugins(self) -> None:
        """Load the operator's own policies."""
        for path in self.plugins:
            with self.blamed("plugins"):
                load_plugin(path)

    def check_engine(self) -> None:
        """Raise `InputError` if there is no such engine."""
        with self.blamed("engine"):
            _ray_address(str(self._values["engine"]))

    def check_config(self) -> None:
        """Raise `InputError` if the configuration file does not exist."""
        if self.config is not None and not self.config.is_file():
            with self.blamed("config"):
                raise InputError("there is no such file", path=str(self.config))


def _ray_address(told: str) -> str | None:
    """The address of Ray in an engine such as "ray:auto"; None for this machine."""
    engine, _, address = told.partition(":")
    if told == LOCAL:
        return None
    if engine != RAY or not address:
        raise InputError(f"--engine {told!r} is neither 'local' nor like 'ray:auto', 'ray:HOST:PORT'")
    return address


def _kept(name: str, value: Any) -> Any:
    """A value as it is saved. Paths are absolute, so that they mean the same wherever the next scheduler is started."""
    if name in ("config", "jobs") and value not in (None, NONE):
        return str(Path(value).absolute())
    return value if name != "plugins" or value is None else tuple(str(Path(path).absolute()) for path in value)


class Settings:
    """The configuration in force, and its file. `read` says whether there was a file.

    It is read before the scheduler is made, because making the scheduler writes to the journal: a file with an error
    must leave everything as it was.
    """

    def __init__(self, folder: Path, path: Path | None = None) -> None:
        """Read the file given, or `fairway.toml` of the state directory if there is one. Errors are raised."""
        self.path = path or folder / FILE_NAME
        self.problem = ""
        self.read, self._text = False, ""
        self._required = path is not None
        self._stamp = self._seen()
        self.config = self._read()
        self._limits = Limits(self.config)
        self._bounds = BoundsGuard()
        self._cluster: Cluster | None = None
        self._tenants: Tenants | None = None
        self._racks: dict[str, str] = {}
        self._usual = ""

    def fit(self, cluster: Cluster, last: Mapping[str, Any] = _NOTHING) -> Mapping[str, Any]:
        """Make the virtual clusters of tenants on this cluster. `ConfigError` if it cannot hold them.

        Returns the facts to keep in the journal for the next time.

        `last` are the facts of last time: a node that is away does not say where it is, and in a cluster that has got
        a second GPU type, cells of no type are of the first. If the cluster has grown and does not have the reserved
        racks any more, the new nodes count as being in no rack.
        """
        racks, usual = last.get(CELLS, ({}, ""))
        told = {node.name: node.rack for node in cluster.nodes if node.rack}
        self._racks = {**self._racks, **racks, **told}
        self._usual = cluster.types[0].name if len(cluster.types) == 1 else self._usual or usual
        before = self._cluster
        try:
            self._use(cluster, self._racks)
        except ConfigError as error:
            if before is None:
                raise
            self.problem = f"{error}; nodes that have joined count as being in no rack"
            self._use(cluster, {node.name: node.rack for node in before.nodes})
        return self._fitted()

    def _fitted(self) -> dict[str, Any]:
        return {CELLS: [self._racks, self._usual]}

    def _use(self, cluster: Cluster, racks: Mapping[str, str]) -> None:
        nodes = [replace(node, rack=racks.get(node.name, "")) for node in cluster.nodes]
        placed = Cluster.of(nodes, cluster.types, cluster.text)
        self._tenants = virtual_clusters(self.config, placed, str(self.path), self._usual)
        self._cluster = placed

    def govern(self, scheduler: Scheduler) -> None:
        """Give the jobs of a scheduler the present terms, where an earlier configuration had others."""
        before = _of_last_time(scheduler.journal.facts().get("config"))
        # Do not wait: the scheduler does not run yet, and nothing depends on the answer.
        scheduler.engine.ask(self._command(scheduler, self.config, before))

    def refuse(self, requests: Sequence[JobRequest]) -> None:
        """Raise `InputError` if a request is not allowed."""
        for request in requests:
            refuse(request, self.config)
            if self._tenants is not None:
                refuse_in_tenants(given(request, self.config), self._tenants, self._tenants.cluster)

    def refuse_too_many(self, load: Load, jobs: LiveJobs, now_s: float) -> None:
        """Raise `InputError` if so many new jobs are not allowed."""
        config, held = self.config, jobs.store.held
        self._bounds.check(load, config.limits, held, now_s, str(self.path) if self.read else FILE_NAME)

        def active() -> Iterator[tuple[str, str]]:
            yield from ((spec.user, spec.queue) for spec in jobs.state.specs.values())
            yield from ((user, queue_named(name, config)) for user, name in held.promised.elements())

        new: Counter[tuple[str, str]] = Counter()
        for (user, name), count in load.jobs.items():
            new[user, queue_named(name, config)] += count
        refuse_too_many(new, config, active)

    def given(self, requests: Sequence[JobRequest]) -> Sequence[JobRequest]:
        """Requests that are allowed, with the terms that they get."""
        if self.config == NO_CONFIG:
            return requests
        made = [given(request, self.config) for request in requests]
        if self._tenants is None:
            return made
        longest_s = JobRequest.grace_s if self.config.defaults.grace_s is None else self.config.defaults.grace_s
        return [bounded_grace(request, self._tenants, longest_s) for request in made]

    def amended(self, request: JobRequest, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The changes as they are made to a request; `InputError` if its owner may not make one of them."""
        made = amended(request, changes, self.config)
        if self._tenants is not None and "priority" in made:
            refuse_fixed(replace(request, priority=made["priority"]), self._tenants)
        return made

    def ranked(self, request: JobRequest) -> int:
        """The priority that counts for a request."""
        return ranked(request, self._tenants)

    def tenants(self) -> Tenants | None:
        """The virtual clusters of tenants."""
        return self._tenants

    def limits(self, snapshot: Snapshot, decision: Decision) -> Mapping[int, Cut]:
        """Rows whose grants go beyond what their users may have, and rows that wait while nothing is left for them."""
        return self._limits(snapshot, decision)

    def log_bytes(self) -> int:
        """How large the log of a rank may grow."""
        return self.config.defaults.log_bytes

    def host_bytes(self) -> int:
        """How much host memory may hold the GPU memory of suspended jobs."""
        given = self.config.gpu.host_memory_bytes
        return half_of_memory() if given is None else given

    def sharing(self) -> SharingWish:
        """How jobs that ask for it share a GPU."""
        return self.config.sharing

    def reload(self, scheduler: Scheduler) -> Future[None]:
        """Read the file again, for the jobs of a scheduler. On an error it raises, and the old configuration stays.

        The future is done when the new configuration is in force. Jobs submitted before have the old terms until then.
        """
        self._stamp = self._seen()
        try:
            config = self._read()
            if self._cluster is not None:
                virtual_clusters(config, self._cluster, str(self.path), self._usual)
        except ConfigError as error:
            self.problem = f"{error}; the old configuration is still in force"
            raise
        self.problem = ""
        return scheduler.engine.ask(self._command(scheduler, config))

    def poll(self, scheduler: Scheduler) -> str | None:
        """Reload if the file has changed. Returns a message about the reload, if there was one."""
        if self._seen() == self._stamp:
            return None
        try:
            self.reload(scheduler)
        except ConfigError:
            return self.problem
        return f"{self.path} was read again" if self.read else f"{self.path} is gone; the defaults are in force"

    def _seen(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Config:
        if not self._required and not self.path.exists():
            self.read, self._text = False, ""
            return NO_CONFIG
        config, self._text = read_config(self.path)
        self.read = True
        return config

    def _command(self, scheduler: Scheduler, config: Config, before: Config | None = None) -> Command:
        """The command that puts a configuration in force and gives jobs their new weights, priorities and tenants.

        `before` is the configuration under which they were admitted: the one that is in force until then, if None.
        """
        text = self._text

        def command(now_s: float) -> tuple[list[Event], None]:
            # Not sooner: commands that came before this one would count the new terms, and get them again here.
            old = self.config if before is None else before
            self.config, self._limits = config, Limits(config)
            if self._cluster is not None:
                self._tenants = virtual_clusters(config, self._cluster, str(self.path), self._usual)
            events: list[Event] = []
            snapshot = scheduler.state.snapshot()
            counted = dict(zip(snapshot.jobs.tolist(), snapshot.priority.tolist(), strict=True))
            for record in scheduler.store:
                if not record.state.ended:
                    changed = changed_terms(record.request, old, config)
                    if changed is not record.request or self.ranked(changed) != counted.get(record.number):
                        terms = {"weight": changed.weight, "priority": changed.priority}
                        events += scheduler.commands.set_terms(record, now_s, terms)
                        scheduler.store.touch(record)
            # In one transaction with the new terms: if only one of the two were kept, terms would count twice or never.
            scheduler.writer.keep({"config": text, **self._fitted()})
            return events, None

        return command


def _of_last_time(text: Any) -> Config:
    """The configuration under which queued jobs were admitted, as far as it can be read."""
    try:
        return parse_config(text) if isinstance(text, str) else NO_CONFIG
    except ConfigError:
        return NO_CONFIG
