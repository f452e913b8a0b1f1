"""The audit log: who changed what, when, from where, and what the answer was; one line of JSON for each request.

A thread of its own writes the lines, so a request never waits for it and never fails because of it. If the file cannot
be written, the lines wait, `problem` says why, and the first of them are lost if there are too many. A file that has
grown large becomes an older piece; only some pieces are kept.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = "audit.jsonl"
MOST_BYTES, PIECES = 8 * 1024 * 1024, 8
"""The size at which a new piece begins, and how many older ones are kept."""
MOST_WAITING = 10_000
BATCH_S, AGAIN_S = 0.05, 2.0
"""How long lines are collected, and when a file that cannot be written is tried again."""


class AuditLog:
    """The log of one state directory. Any thread may call this."""

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES, pieces: int = PIECES) -> None:
        self.problem = ""
        self._path = folder / FILE
        self._most_bytes, self._pieces = most_bytes, pieces
        self._waiting: deque[dict[str, Any]] = deque()
        self._lost = 0
        self._news = threading.Event()
        self._closing = threading.Event()
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None

    def note(self, entry: dict[str, Any]) -> None:
        """Add an entry. It is on disk a moment later."""
        with self._lock:
            self._add([entry])
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
            self._thread.start()
        self._news.set()

    def entries(self, *, since_s: float = 0.0, user: str | None = None, limit: int = 1000) -> list[dict[str, Any]]:
        """The latest entries since a date, of one user or of all, the latest last."""
        self.write()
        found: list[dict[str, Any]] = []
        for entry in self._backwards():
            if entry.get("time_s", 0.0) < since_s or len(found) >= limit:
                break
            if user is None or entry.get("user") == user:
                found.append(entry)
        return found[::-1]

    def close(self) -> None:
        """Write what is left."""
        self._closing.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()
        self.write()

    def write(self) -> None:
        """Write what waits, now."""
        with self._writing:
            with self._lock:
                entries, self._waiting = list(self._waiting), deque()
                lost, self._lost = self._lost, 0
            if not entries:
                return
            told = [{"time_s": entries[0]["time_s"], "lost": lost}, *entries] if lost else entries
            try:
                self._append("".join(f"{json.dumps(one)}\n" for one in told).encode())
                self.problem = ""
            except OSError as error:
                self.problem = f"the audit log cannot be written: {error}"
                with self._lock:
                    since, self._waiting = list(self._waiting), deque()
                    self._lost += lost
                    self._add([*entries, *since])

    def _add(self, entries: list[dict[str, Any]]) -> None:
        self._waiting.extend(entries)
        while len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self._lost += 1

    def _work(self) -> None:
        while not self._closing.is_set():
            self._news.wait()
            self._closing.wait(AGAIN_S if self.problem else BATCH_S)
            self._news.clear()
            self.write()
            if self.problem:
                self._news.set()

    def _append(self, lines: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size >= self._most_bytes:
            self._begin_piece()
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if os.write(fd, lines) != len(lines):
                # All or nothing: what was written of it would come again.
                os.ftruncate(fd, size)
                raise OSError("there is no room for it")
        finally:
            os.close(fd)

    def _begin_piece(self) -> None:
        for number in range(self._pieces, 0, -1):
            older = self._piece(number)
            newer = self._piece(number - 1)
            if newer.exists():
                newer.replace(older)

    def _piece(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{FILE}.{number}")

    def _backwards(self) -> Iterator[dict[str, Any]]:
        for number in range(self._pieces + 1):
            try:
                lines = self._piece(number).read_bytes().splitlines()
            except OSError:
                continue
            for line in reversed(lines):
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict):
                    yield entry
