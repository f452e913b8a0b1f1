"""The configuration of a running scheduler: read at the start, again when its file changes, and when it is asked to.

A file with an error changes nothing: the scheduler goes on with what it had, and says what is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairway.core.event import Event
from fairway.runtime.daemon.config import NO_CONFIG, Config, ConfigError, parse_config, read_config
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.guard.limits import Limits
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.submit_rules import admitted, amended, changed_terms

FILE_NAME = "fairway.toml"


class Settings:
    """The configuration in force, and the file that it is from; `read` says whether there was one.

    It is read before there is a scheduler, which writes to the journal as soon as it is made: a file with an error is
    to leave everything as it was.
    """

    _scheduler: Scheduler

    def __init__(self, folder: Path, path: Path | None = None) -> None:
        """Read the file given, or `fairway.toml` of the state directory if there is one. Errors are raised."""
        self.path = path or folder / FILE_NAME
        self.problem = ""
        self.read, self._text = False, ""
        self._required = path is not None
        self._stamp = self._seen()
        self.config = self._read()

    def govern(self, scheduler: Scheduler) -> None:
        """Put what was read in force, for this scheduler from now on."""
        self._scheduler = scheduler
        self._take(self.config, _of_last_time(scheduler.journal.facts().get("config")))

    def reload(self) -> Config:
        """Read the file again. If it cannot be used the old configuration stays, and the error is raised."""
        self._stamp = self._seen()
        try:
            config = self._read()
        except ConfigError as error:
            self.problem = f"{error}; the configuration from before is still in force"
            raise
        self.problem = ""
        if config != self.config:
            self._take(config, self.config)
        return config

    def poll(self) -> str | None:
        """Reload if the file has changed; what came of that, if it did."""
        if self._seen() == self._stamp:
            return None
        try:
            self.reload()
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

    def _take(self, config: Config, before: Config) -> None:
        """Put a configuration in force. Jobs that are queued get their new weights and priorities."""
        text, self.config = self._text, config
        scheduler = self._scheduler
        scheduler.guard.limits = Limits(config)
        scheduler.engine.log_bytes = config.defaults.log_bytes
        scheduler.commands.admission = self._admitted if config != NO_CONFIG else lambda requests: requests
        scheduler.commands.amendment = lambda request, changes: amended(request, changes, self.config)

        def command(now_s: float) -> tuple[list[Event], None]:
            events: list[Event] = []
            for record in scheduler.store:
                if not record.state.ended:
                    changed = changed_terms(record.request, before, config)
                    if changed is not record.request:
                        terms = {"weight": changed.weight, "priority": changed.priority}
                        events += scheduler.commands.set_terms(record, now_s, terms)
                        scheduler.store.touch(record)
            scheduler.engine.timers.set(now_s)
            # With the new terms or not at all: if only one of the two were kept, terms would count twice or never.
            scheduler.writer.keep({"config": text})
            return events, None

        # Not waited for: at the start the scheduler does not run yet, and nothing depends on the answer.
        scheduler.engine.ask(command)

    def _admitted(self, requests: list[JobRequest]) -> list[JobRequest]:
        specs = self._scheduler.state.specs
        return admitted(requests, self.config, lambda: [(spec.user, spec.queue) for spec in specs.values()])


def _of_last_time(text: Any) -> Config:
    """The configuration that queued jobs were admitted under, as far as it can be read."""
    try:
        return parse_config(text) if isinstance(text, str) else NO_CONFIG
    except ConfigError:
        return NO_CONFIG
