"""Jobs as rows of the journal. What lists and searches need has columns of its own; the record has everything.

The environment of a job is in a table of its own, under the hash of its content, because the tasks of an array and most
jobs of a user have the same one.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from fairway.runtime.jobs.records import StoredJob, family_of
from fairway.runtime.jobs.shared_environment import SharedEnvironment, shared

JOBS = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, client_key TEXT UNIQUE, ended INTEGER NOT NULL,
    settled INTEGER NOT NULL, family INTEGER NOT NULL, state TEXT NOT NULL, user TEXT NOT NULL, queue TEXT NOT NULL,
    submitted_s REAL, ended_s REAL, gpu_s REAL, preemptions INTEGER, environment TEXT, record TEXT NOT NULL
);
CREATE TABLE environments (number INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, variables TEXT NOT NULL);
"""
INDEXES = """
CREATE INDEX jobs_unsettled ON jobs (environment, family) WHERE settled = 0;
CREATE INDEX jobs_ended ON jobs (ended_s) WHERE settled = 1;
CREATE INDEX jobs_family ON jobs (family, ended_s) WHERE settled = 1;
CREATE INDEX jobs_environment ON jobs (environment) WHERE settled = 1;
"""
"""A job is in one of them until it is settled, and in the others after that. So a submission writes few pages."""
STORIES = """
CREATE TABLE IF NOT EXISTS notes (
    seq INTEGER PRIMARY KEY, job INTEGER NOT NULL, date_s REAL NOT NULL, what TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS notes_job ON notes (job);
CREATE TABLE IF NOT EXISTS courses (job INTEGER PRIMARY KEY, points BLOB NOT NULL)"""
"""What happened to jobs and what they reported over time. It is not in their records, which are written often."""
WIDTH = 15
SAVE, ADD = (f"INSERT OR {word} INTO jobs VALUES ({', '.join('?' * WIDTH)})" for word in ("REPLACE", "IGNORE"))
COLUMNS = "number, id, client_key, ended, environment, record"
"""The columns that `JobReader.job` needs."""


class JobReader:
    """Reads jobs, each environment once, or none."""

    def __init__(self, db: sqlite3.Connection, *, environments: bool = True) -> None:
        self._db = db
        self._environments = environments
        self._known: dict[str, SharedEnvironment] = {}

    def job(self, row: tuple[int, str, str | None, int, str | None, str]) -> StoredJob:
        """The job in a row of `COLUMNS`; `ValueError` if its environment is lost."""
        number, name, key, done, env, text = row
        record = json.loads(text)
        if env is not None and self._environments:
            record["request"]["env"] = self._known.get(env) or self._read(env)
        return StoredJob(number, name, key, bool(done), record)

    def _read(self, name: str) -> SharedEnvironment:
        found = self._db.execute("SELECT variables FROM environments WHERE hash = ?", (name,)).fetchone()
        env = None if found is None else environment_in(name, found[0])
        if env is None:
            raise ValueError(f"the environment {name} is lost")
        self._known[name] = env
        return env


def environment_in(name: str, text: str) -> SharedEnvironment | None:
    """An environment from its text; None if the text is not the one with this hash."""
    try:
        found = shared(json.loads(text))
        return found if found.hash == name else None
    except (ValueError, TypeError, AttributeError):
        return None


def row_of(job: StoredJob, environment: str | None) -> tuple[Any, ...]:
    """A job as a row of the table `jobs`. Its environment is in another table, under this hash."""
    record, request = job.record, job.record["request"]
    last = record["attempts"][-1] if record["attempts"] else None
    return (
        *job[:3],
        int(job.ended),
        int(job.ended and (last is None or last["ended_s"] is not None)),
        family_of(job.id),
        record["state"],
        request.get("user", ""),
        request.get("queue", ""),
        record["submitted_s"],
        record["ended_s"],
        record["gpu_s"],
        record["preemptions"],
        environment,
        compact({**record, "request": {name: value for name, value in request.items() if name != "env"}}),
    )


compact = json.JSONEncoder(separators=(",", ":")).encode
"""A value as JSON without spaces."""


def share_environments(db: sqlite3.Connection) -> None:
    """Lead from schema 1, where each record had its own environment, to schema 2."""
    db.execute("ALTER TABLE jobs RENAME TO old_jobs")
    db.execute("DROP INDEX jobs_ended")
    _execute(db, JOBS)
    for number, name, key, done, text in db.execute("SELECT * FROM old_jobs ORDER BY number"):
        job = StoredJob(number, name, key, bool(done), json.loads(text))
        request = job.record["request"]
        env = shared(request.get("env") or {})
        if request.get("array_task") is not None and "FAIRWAY_ARRAY_TASK_ID" in env:
            # The number of a task used to be in its environment, so no two tasks could share one.
            env = shared({name: value for name, value in env.items() if name != "FAIRWAY_ARRAY_TASK_ID"})
        if env:
            db.execute("INSERT OR IGNORE INTO environments (hash, variables) VALUES (?, ?)", (env.hash, compact(env)))
        db.execute(SAVE, row_of(job, env.hash if env else None))
    db.execute("DROP TABLE old_jobs")


def add_stories(db: sqlite3.Connection) -> None:
    """Lead from schema 3, which had no notes and courses of jobs, to schema 4."""
    _execute(db, STORIES)


def divide_indexes(db: sqlite3.Connection) -> None:
    """Lead from schema 2, whose indexes had all jobs, to schema 3."""
    for name in ("jobs_settled", "jobs_family", "jobs_environment"):
        db.execute(f"DROP INDEX IF EXISTS {name}")
    _execute(db, INDEXES)


def _execute(db: sqlite3.Connection, statements: str) -> None:
    """Not `executescript`, which would end the transaction."""
    for statement in statements.split(";"):
        db.execute(statement)
