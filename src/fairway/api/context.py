"""What all routes share: the scheduler, permissions, the disk, the event stream, forecasts, the metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import Request

from fairway.api.audit_log import AuditLog
from fairway.api.auth_middleware import PERSON
from fairway.api.disk_space import DiskSpace
from fairway.api.events import Stream
from fairway.api.json_rows import Listing
from fairway.api.page_forecast import WALL_S, PageForecast
from fairway.api.page_port import PagePort
from fairway.api.people import Access, Person
from fairway.api.prometheus import Figures
from fairway.api.request_turns import RequestTurns
from fairway.api.short_list import ShortList
from fairway.api.timeline import Timeline
from fairway.api.tokens import Tokens
from fairway.api.web_sessions import WebSessions
from fairway.core.errors import InputError
from fairway.runtime.daemon.daemon import Daemon
from fairway.runtime.jobs.commands import UnknownJobError
from fairway.runtime.jobs.records import JobRecord


class ApiContext:
    """One running scheduler as the API sees it."""

    def __init__(self, daemon: Daemon, access: Access) -> None:
        self.daemon = daemon
        self.scheduler = daemon.scheduler
        self.tokens = access.tokens or Tokens(daemon.options.folder)
        self.sessions = access.sessions or WebSessions(daemon.options.folder)
        self.access = replace(access, tokens=self.tokens, sessions=self.sessions)
        self.page_port = PagePort()
        self.audit = AuditLog(daemon.options.folder)
        self.began_s = daemon.scheduler.clock.now_s()
        self.disk = DiskSpace(daemon.options.folder)
        self.listing = Listing(daemon.scheduler)
        self.stream = Stream(daemon.scheduler)
        self.short_list = ShortList(daemon.scheduler, self.stream)
        self.page_forecast = PageForecast(self._ahead, self.stream)
        self.forecasts = RequestTurns("forecasts", each=4, most=32)
        self.lists = RequestTurns("lists", each=100, most=400)
        self.checks = RequestTurns("checks", each=4, most=32)
        self.timeline = Timeline(daemon.scheduler)
        self.figures = Figures(daemon, self.disk)
        self.stream.listen()
        self.figures.listen()
        self.scheduler.writer.on_full.append(self.disk.drop_ballast)
        self.disk.take_on_ballast()

    @property
    def closing(self) -> bool:
        """Whether endless answers have to end now."""
        return self.stream.closing

    def close(self) -> None:
        """End streams, logs that are being followed, and requests that wait for their turn."""
        self.stream.close()
        self.page_forecast.close()
        self.forecasts.close()
        self.lists.close()
        self.checks.close()

    def _ahead(self) -> dict[str, Any]:
        from fairway.api.what_if import all_ahead

        return all_ahead(self.scheduler, WALL_S)

    @property
    def private(self) -> bool:
        """Whether the configuration hides commands, directories and logs from other users."""
        return self.daemon.settings.config.private

    def may_see(self, person: Person, record: JobRecord) -> bool:
        """Whether a person may see the command, the directory and the logs of a job."""
        return not self.private or self.access.may_control(person, record.request.user)

    def job(self, name: str) -> JobRecord:
        """The job of an id, which is not that of an array."""
        records = self.scheduler.store.tasks(name)
        if not records:
            raise UnknownJobError(f"there is no job {name!r}")
        if records[0].id != name:
            raise InputError(f"{name} is an array; ask for one of its tasks, such as {records[0].id}")
        return records[0]

    def signed_in(self, request: Request) -> bool:
        """Whether an endless answer may go on. A page that has signed out, or whose session has ended, gets no more."""
        return not self.person(request).session or self.access.session(request.scope) is not None

    def person(self, request: Request) -> Person:
        """Who sent a request, as the first checks have found."""
        person: Person = request.scope[PERSON]
        return person
