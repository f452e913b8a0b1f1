"""Writes the journal while a scheduler runs: each step in one transaction, on disk before the scheduler acts on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.event import Event, Woken
from fairway.core.snapshot_json import plain_memory
from fairway.core.state import State
from fairway.runtime.jobs.store import JobStore
from fairway.runtime.journal.database import DiskFullError, Journal

MEMORY_EVERY_S = 10.0
"""How often the policy's memory is written while no job is started or stopped."""
FULL_RETRY_S = 1.0


class JournalWriter:
    """Writes each step of a scheduler into its journal, together with the records of jobs that have changed.

    If the disk is full, it calls the functions in `on_full` and waits for room. Running jobs are not affected.
    """

    def __init__(self, journal: Journal, store: JobStore, state: State, *, sleep: Callable[[float], None]) -> None:
        self.on_full: list[Callable[[], None]] = []
        self._sleep = sleep
        self._journal = journal
        self._store = store
        self._state = state
        self._kept: dict[str, Any] = {}
        self._names = 0
        self._memory_s = 0.0

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Write facts with the next step, in the same transaction as the events and records of a command.

        A command must call this only when nothing in it can fail any more.
        """
        self._kept.update(facts)

    def note_events(self, events: Sequence[Event]) -> None:
        """Write down what happened."""
        self._write([event for event in events if type(event) is not Woken])

    def note_round(self, now_s: float, decision: Decision, actions: Sequence[Action]) -> None:
        """Write down what was decided; at most every `MEMORY_EVERY_S` if there are no actions."""
        if not actions and now_s < self._memory_s:
            return
        self._memory_s = now_s + MEMORY_EVERY_S
        facts = {"memory": plain_memory(decision.memory), "round": self._state.round, "last_s": now_s}
        names = self._state.names()
        if sum(map(len, names)) != self._names:
            self._names, facts["names"] = sum(map(len, names)), names
        # The instant of the round, which may be later than the last event.
        self._write((Woken(now_s),) if actions else (), actions=actions, facts=facts)

    def save(self) -> None:
        """Store records that have changed without events."""
        self._write(())

    def _write(
        self, events: Sequence[Event], *, actions: Sequence[Action] = (), facts: Mapping[str, Any] | None = None
    ) -> None:
        records = self._store.take_changed()
        notes, courses = self._store.take_stories()
        changed = [record.stored() for record in records]
        facts = {**self._kept, **(facts or {})}
        if not (events or actions or changed or facts or notes or courses):
            return
        while True:
            try:
                with self._journal.transaction():
                    self._journal.append(events)
                    self._journal.append(actions, max(self._state.round, 1))
                    self._journal.save_jobs(changed)
                    self._journal.add_notes(notes)
                    self._journal.save_courses(courses)
                    if facts:
                        self._journal.set_facts(facts)
                self._kept = {}
                self._store.settle(records)
                self._journal.tidy()
                return
            except DiskFullError:
                for make_room in self.on_full:
                    make_room()
                self._sleep(FULL_RETRY_S)
