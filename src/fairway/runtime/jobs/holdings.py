"""What users hold of a scheduler: how many jobs that have not ended, and how many bytes the requests of these have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.shared_environment import SharedEnvironment, shared

JOB_BYTES = 1024
"""What a job counts for besides its texts."""
DEPENDENCY_BYTES = 64


class _Measure:
    """Measures requests."""

    def __init__(self) -> None:
        self._command: tuple[tuple[str, ...], int] = ((), 0)

    def own_bytes(self, request: JobRequest) -> int:
        """How much a request holds besides its environment."""
        command, size = self._command
        if command is not request.command:
            # The tasks of an array have one command, and come one after the other.
            size = sum(map(len, request.command))
            self._command = request.command, size
        texts = (*request.gpu_types, request.cwd, request.executor, request.shown, request.name, request.model)
        return JOB_BYTES + size + sum(map(len, texts)) + DEPENDENCY_BYTES * len(request.depends)


class Load:
    """What requests add up to: jobs by user and by the queue that they name, tasks of arrays, and bytes by user.

    `environments` are their environments by user, which `bytes` does not count.
    """

    def __init__(self) -> None:
        self.jobs: Counter[tuple[str, str]] = Counter()
        self.tasks = 0
        self.bytes: Counter[str] = Counter()
        self.environments: dict[tuple[str, str], int] = {}
        self._measure = _Measure()

    def add(self, requests: Iterable[JobRequest]) -> None:
        """Count requests."""
        for request in requests:
            user, env = request.user, shared(request.env)
            self.jobs[user, request.queue] += 1
            self.tasks += request.array_task is not None
            self.bytes[user] += self._measure.own_bytes(request)
            self.environments[user, env.hash] = env.size

    def by_user(self) -> Counter[str]:
        """The number of jobs by user."""
        made: Counter[str] = Counter()
        for (user, _), count in self.jobs.items():
            made[user] += count
        return made


class Holdings:
    """What jobs that have not ended hold: how many there are, and the bytes of their requests, by user.

    An environment counts once for each user. `promised` is what submissions hold that are still arriving.
    """

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.promised: Counter[tuple[str, str]] = Counter()
        self._held: dict[int, tuple[str, int, SharedEnvironment]] = {}
        self._sharers: Counter[tuple[str, str]] = Counter()
        self._measure = _Measure()

    def __len__(self) -> int:
        return len(self._held) + self.promised.total()

    def take(self, record: JobRecord) -> None:
        """Count a job."""
        user, env = record.request.user, shared(record.request.env)
        own = self._measure.own_bytes(record.request)
        self._held[record.number] = user, own, env
        self.jobs[user] += 1
        self.bytes[user] += own + (0 if self._sharers[user, env.hash] else env.size)
        self._sharers[user, env.hash] += 1

    def release(self, number: int) -> None:
        """A job has ended."""
        held = self._held.pop(number, None)
        if held is None:
            return
        user, own, env = held
        self._sharers[user, env.hash] -= 1
        self.jobs[user] -= 1
        self.bytes[user] -= own
        if not self._sharers[user, env.hash]:
            del self._sharers[user, env.hash]
            self.bytes[user] -= env.size
        if not self.jobs[user]:
            del self.jobs[user], self.bytes[user]

    def promise(self, load: Load) -> None:
        """Count jobs that are to come."""
        self.promised += load.jobs
        self.jobs += load.by_user()
        self.bytes += load.bytes

    def keep_promise(self, request: JobRequest) -> None:
        """A job that was promised comes now: only `take` counts it from now on."""
        user = request.user
        self.promised -= Counter([(user, request.queue)])
        self.jobs[user] -= 1
        self.bytes[user] -= self._measure.own_bytes(request)

    def environment_bytes(self, load: Load) -> Counter[str]:
        """How many bytes the environments of requests would add, by user."""
        added: Counter[str] = Counter()
        for (user, name), size in load.environments.items():
            if not self._sharers[user, name]:
                added[user] += size
        return added
