"""The configuration of a running scheduler: read at the start, when its file changes, and on request.

A file with an error changes nothing: the scheduler goes on with the old configuration and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.snapshot import Snapshot
from fairway.runtime.daemon.config import NO_CONFIG, Config, ConfigError, parse_config, read_config
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.guard.limits import Limits
from fairway.runtime.guard.policy_guard import Cut
from fairway.runtime.jobs.happenings import Command
from fairway.runtime.jobs.live_jobs import LiveJobs
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.submit_rules import admitted, amended, changed_terms

FILE_NAME = "fairway.toml"


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

    def govern(self, scheduler: Scheduler) -> None:
        """Give the jobs of a scheduler the present terms, where an earlier configuration had others."""
        before = _of_last_time(scheduler.journal.facts().get("config"))
        # Do not wait: the scheduler does not run yet, and nothing depends on the answer.
        scheduler.engine.ask(self._command(scheduler, self.config, before))

    def admitted(self, requests: list[JobRequest], jobs: LiveJobs) -> list[JobRequest]:
        """The requests with the terms that they get; `InputError` if one of them is not allowed."""
        if self.config == NO_CONFIG:
            return requests
        specs = jobs.state.specs
        return admitted(requests, self.config, lambda: [(spec.user, spec.queue) for spec in specs.values()])

    def amended(self, request: JobRequest, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The changes as they are made to a request; `InputError` if its owner may not make one of them."""
        return amended(request, changes, self.config)

    def limits(self, snapshot: Snapshot, decision: Decision) -> Mapping[int, Cut]:
        """Rows whose grants go beyond what their users may have, and rows that wait while nothing is left for them."""
        return self._limits(snapshot, decision)

    def log_bytes(self) -> int:
        """How large the log of a rank may grow."""
        return self.config.defaults.log_bytes

    def reload(self, scheduler: Scheduler) -> Future[None]:
        """Read the file again, for the jobs of a scheduler. On an error it raises, and the old configuration stays.

        The future is done when the new configuration is in force. Jobs submitted before have the old terms until then.
        """
        self._stamp = self._seen()
        try:
            config = self._read()
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
        return f"{self.path} was read again" if self.read else f"{self.path} is gone; there are no limits any more"

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
        """The command that puts a configuration in force and gives queued jobs their new weights and priorities.

        `before` is the configuration under which they were admitted: the one that is in force until then, if None.
        """
        text = self._text

        def command(now_s: float) -> tuple[list[Event], None]:
            # Not sooner: commands that came before this one would count the new terms, and get them again here.
            old = self.config if before is None else before
            self.config, self._limits = config, Limits(config)
            events: list[Event] = []
            for record in scheduler.store:
                if not record.state.ended:
                    changed = changed_terms(record.request, old, config)
                    if changed is not record.request:
                        terms = {"weight": changed.weight, "priority": changed.priority}
                        events += scheduler.commands.set_terms(record, now_s, terms)
                        scheduler.store.touch(record)
            # In one transaction with the new terms: if only one of the two were kept, terms would count twice or never.
            scheduler.writer.keep({"config": text})
            return events, None

        return command


def _of_last_time(text: Any) -> Config:
    """The configuration under which queued jobs were admitted, as far as it can be read."""
    try:
        return parse_config(text) if isinstance(text, str) else NO_CONFIG
    except ConfigError:
        return NO_CONFIG
