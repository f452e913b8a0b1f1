"""Arrays of which only so many tasks may run at a time: who is in, and who waits."""

from __future__ import annotations

from fairway.runtime.jobs.records import JobRecord


class Arrays:
    """Tasks by array. One that is in stays in until it has ended or is set aside."""

    def __init__(self) -> None:
        self._inside: dict[str, set[int]] = {}
        self._waiting: dict[str, dict[int, JobRecord]] = {}

    def refused(self, record: JobRecord) -> str:
        """Let a task in; or say why it has to wait."""
        most, name = record.request.array_at_once, _array(record)
        if not most:
            return ""
        inside = self._inside.setdefault(name, set())
        if record.number in inside or len(inside) < most:
            inside.add(record.number)
            self._waiting.get(name, {}).pop(record.number, None)
            return ""
        self._waiting.setdefault(name, {})[record.number] = record
        return f"{most} tasks of its array run at a time" if most > 1 else "one task of its array runs at a time"

    def left(self, record: JobRecord) -> list[JobRecord]:
        """A task is not to run, or not any more; returns those for whom there is room now."""
        most, name = record.request.array_at_once, _array(record)
        inside, waiting = self._inside.get(name), self._waiting.get(name, {})
        waiting.pop(record.number, None)
        if not most or inside is None or record.number not in inside:
            return []
        inside.discard(record.number)
        room = most - len(inside)
        found = [other for other, _ in zip(waiting.values(), range(room), strict=False)]
        if not inside and not found:
            del self._inside[name]
        return found


def _array(record: JobRecord) -> str:
    return record.id.partition("_")[0]
