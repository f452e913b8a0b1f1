"""What one user, and all users together, may ask of a scheduler. Each refusal names the bound and how to raise it."""

from __future__ import annotations

from fairway.runtime.daemon.config import Bounds, NotAdmittedError
from fairway.runtime.jobs.holdings import Holdings, Load

_MINUTE_S = 60.0
_MOST_SENDERS = 10_000
"""How many users are remembered for how often they have submitted."""


class TooOftenError(NotAdmittedError):
    """A user submits too often. Later the same submission may be taken."""


class BoundsGuard:
    """Refuses submissions that go beyond the bounds."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}

    def check(self, load: Load, bounds: Bounds, held: Holdings, now_s: float, file: str = "fairway.toml") -> None:
        """Raise `NotAdmittedError` if new jobs would go beyond a bound. `held` is what jobs that have not ended hold.

        `file` is the configuration, which has the bounds.
        """
        jobs = load.by_user()
        for user in jobs:
            self._count(user, bounds, now_s, file)
        if load.tasks > bounds.array_tasks:
            raise NotAdmittedError(_told(f"an array of {load.tasks:,} tasks", "array_tasks", bounds.array_tasks, file))
        total = len(held) + jobs.total()
        if total > bounds.jobs:
            raise NotAdmittedError(_told(f"{total:,} jobs that have not ended", "jobs", bounds.jobs, file))
        for user, new in jobs.items():
            total = held.jobs[user] + new
            if total > bounds.jobs_per_user:
                what = f"{total:,} jobs of user {user} that have not ended"
                raise NotAdmittedError(_told(what, "jobs_per_user", bounds.jobs_per_user, file))
        for user, added in (load.bytes + held.environment_bytes(load)).items():
            total = held.bytes[user] + added
            if total > bounds.bytes_per_user:
                what = f"{total:,} bytes in the requests of user {user} that have not ended"
                raise NotAdmittedError(_told(what, "bytes_per_user", bounds.bytes_per_user, file))

    def _count(self, user: str, bounds: Bounds, now_s: float, file: str) -> None:
        """Count a submission. A user may send as many at once as in a minute."""
        most = bounds.submissions_per_minute
        left, since_s = self._left.get(user, (float(most), now_s))
        left = min(left + max(now_s - since_s, 0.0) * most / _MINUTE_S, float(most))
        if left < 1.0:
            what = f"more submissions of user {user} in a minute"
            raise TooOftenError(_told(what, "submissions_per_minute", most, file))
        if len(self._left) >= _MOST_SENDERS:
            self._left.clear()
        self._left[user] = left - 1.0, now_s


def _told(what: str, name: str, most: int, file: str) -> str:
    return f"{what}: the most is {most:,}. `{name}` under [limits] in {file} raises it"
