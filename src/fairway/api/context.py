"""What all routes share: the scheduler, permissions, the disk, the event stream, forecasts, the metrics."""

from __future__ import annotations

from dataclasses import replace

from fastapi import Request

from fairway.api.audit_log import AuditLog
from fairway.api.auth_middleware import PERSON
from fairway.api.disk_space import DiskSpace
from fairway.api.events import Stream
from fairway.api.json_rows import Listing
from fairway.api.people import Access, Person
from fairway.api.prometheus import Figures
from fairway.api.request_turns import RequestTurns
from fairway.api.tokens import Tokens
from fairway.runtime.daemon.daemon import Daemon
from fairway.runtime.jobs.records import JobRecord


class ApiContext:
    """One running scheduler as the API sees it."""

    def __init__(self, daemon: Daemon, access: Access) -> None:
        self.daemon = daemon
        self.scheduler = daemon.scheduler
        self.tokens = access.tokens or Tokens(daemon.options.folder)
        self.access = access if access.tokens else replace(access, tokens=self.tokens)
        self.audit = AuditLog(daemon.options.folder)
        self.began_s = daemon.scheduler.clock.now_s()
        self.disk = DiskSpace(daemon.options.folder)
        self.listing = Listing(daemon.scheduler)
        self.stream = Stream(daemon.scheduler)
        self.forecasts = RequestTurns("forecasts", each=4, most=32)
        self.lists = RequestTurns("lists", each=100, most=400)
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
        self.forecasts.close()
        self.lists.close()

    @property
    def private(self) -> bool:
        """Whether the configuration hides commands, directories and logs from other users."""
        return self.daemon.settings.config.private

    def may_see(self, person: Person, record: JobRecord) -> bool:
        """Whether a person may see the command, the directory and the logs of a job."""
        return not self.private or self.access.may_control(person, record.request.user)

    def person(self, request: Request) -> Person:
        """Who sent a request, as the first checks have found."""
        person: Person = request.scope[PERSON]
        return person
