"""Arrays with a limit on how many tasks run at a time: which tasks may run, and which wait."""

from __future__ import annotations

from fairway.runtime.jobs.records import JobRecord


class Arrays:
    """Tasks by array. A task that may run keeps its place until it has ended, is held or is suspended."""

    def __init__(self) -> None:
        self._inside: dict[str, set[int]] = {}
        self._waiting: dict[str, dict[int, JobRecord]] = {}

    def refused(self, record: JobRecord) -> str:
        """Give a task a place and return ""; or return why it has to wait."""
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
        """Take back the place of a task that may not run any more; returns the tasks that there is room for now."""
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
