"""A state directory that goes from machine to machine: saved to a shared directory, and restored from there.

A journal needs a local disk while a scheduler writes to it. So a pilot (see `cli/pilot_script.py`) keeps a copy in the
shared directory, at most about a second old, and the next pilot begins with it, on whatever machines. A copy is taken
in one transaction, beside a scheduler that goes on writing. A file appears under its name when all of it is on disk.

    python -m fairway.runtime.journal.carried_state save STATE SHARED          now
    python -m fairway.runtime.journal.carried_state keep STATE SHARED          again and again, until it is ended
    python -m fairway.runtime.journal.carried_state restore SHARED STATE JOBS
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from pathlib import Path

from fairway.core.errors import FairwayError
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.journal.database import Journal
from fairway.runtime.journal.job_folders import UNCERTAIN, take_over
from fairway.runtime.processes.local import outcome_of

JOURNAL = "journal.db"
EVERY_S = 1.0
"""How often to look whether something has changed."""
CARRIED = ("fairway.toml", "token", "tokens.json", "audit.jsonl*")
"""What goes along with the journal. Other files mean nothing on another machine."""


def save(state: Path, shared: Path) -> bool:
    """Save what another machine needs. Returns whether anything had changed since the last time."""
    shared.mkdir(parents=True, exist_ok=True, mode=0o700)
    changed = False
    for source in _files(state):
        if _stamp(source) != _stamp(shared / source.name):
            _put(source, shared / source.name)
            changed = True
    return _save_journal(state, shared) or changed


def _save_journal(state: Path, shared: Path) -> bool:
    """Save the journal with its write-ahead log as one file."""
    journal, copy = state / JOURNAL, state / "journal.saved"
    if not journal.is_file():
        return False
    newest_ns = max(one.stat().st_mtime_ns for one in (journal, state / f"{JOURNAL}-wal") if one.exists())
    target = shared / JOURNAL
    if target.exists() and target.stat().st_mtime_ns == newest_ns:
        return False
    copy.unlink(missing_ok=True)
    try:
        read = f"{journal.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(read, uri=True)) as source, closing(sqlite3.connect(copy)) as made:
            source.backup(made)
        # From before the copy was taken: what was written since then is newer, and is saved the next time.
        os.utime(copy, ns=(newest_ns, newest_ns))
        _put(copy, target)
    finally:
        copy.unlink(missing_ok=True)
    return True


def keep(state: Path, shared: Path) -> None:
    """Save whenever something has changed, as long as the process that started this one lives."""
    parent, told = os.getppid(), ""
    while os.getppid() == parent:
        began_s = time.monotonic()
        try:
            save(state, shared)
            told = ""
        except (OSError, sqlite3.Error) as error:
            # It may be possible later. One line for each problem.
            if str(error) != told:
                told = str(error)
                print(f"fairway: the state could not be saved: {error}", file=sys.stderr, flush=True)
        # Large journals take long to copy; most of the time should be for other things.
        time.sleep(max(EVERY_S, 20.0 * (time.monotonic() - began_s)))


def restore(shared: Path, state: Path, jobs: Path) -> bool:
    """Put what was saved into a state directory that has no journal yet. Returns whether there was a saved journal.

    `jobs` has the folders of jobs. Nothing that an earlier scheduler started may still run: attempts without an end are
    given up, and jobs that were started after the last copy are as their folders describe them. The machines are taken
    to be others, so that the next scheduler makes its state from the records of jobs.
    """
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (state / JOURNAL).exists() or not (shared / JOURNAL).exists():
        return False
    for source in (*_files(shared), shared / JOURNAL):
        _put(source, state / source.name)
    with closing(Journal(state / JOURNAL)) as journal:
        _release(journal, take_over(journal, jobs))
        _give_up(journal, jobs)
        with journal.transaction():
            journal.set_facts({"machine": None, "salvaged": True})
    return True


def _release(journal: Journal, found: Collection[str]) -> None:
    """Let jobs run that were started after the last copy, and have not ended. Whether they were cancelled since then is
    not known, but that is at most a second, and a cancelled job that had processes has a mark in its folder."""
    records = [JobRecord.from_plain(job.record) for job in journal.jobs(ended=False) if job.id in found]
    held = [record for record in records if record.held and record.reason == UNCERTAIN]
    for record in held:
        record.held, record.reason = False, ""
    with journal.transaction():
        journal.save_jobs(record.stored() for record in held)


def _give_up(journal: Journal, jobs: Path) -> None:
    """Tell keepers that should still live, on a machine that nobody reaches, that their work is done elsewhere."""
    for job in journal.jobs(ended=False):
        attempt = JobRecord.from_plain(job.record).open_attempt
        if attempt is None:
            continue
        folder = jobs / job.id / f"attempt-{attempt.number}"
        for part in (folder, *folder.glob("node-*")):
            if (part / "keeper.json").exists() and outcome_of(part) is None:
                with suppress(OSError):
                    (part / "given-up").touch(mode=0o600)


def _files(folder: Path) -> list[Path]:
    """What goes along with the journal, in this directory."""
    return [one for name in CARRIED for one in sorted(folder.glob(name)) if one.is_file() and not one.is_symlink()]


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file does; None if there is none."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_size, about.st_mtime_ns


def _put(source: Path, target: Path) -> None:
    """Copy a file with its mode and time. Nobody sees a part of it, and it is on disk afterwards."""
    new = target.with_name(f".{target.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    with source.open("rb") as read, new.open("wb") as written:
        shutil.copyfileobj(read, written)
        written.flush()
        os.fsync(written.fileno())
    shutil.copystat(source, new)
    new.replace(target)


def main(words: list[str]) -> int:
    """Run as a program; an error is one line."""
    verbs: dict[str, tuple[Callable[..., object], int]]
    verbs = {"save": (save, 2), "keep": (keep, 2), "restore": (restore, 3)}
    verb, number = verbs.get(words[0] if words else "", (save, 0))
    if not number or len(words) != number + 1:
        print("usage: carried_state save|keep STATE SHARED, or restore SHARED STATE JOBS", file=sys.stderr)
        return 2
    try:
        verb(*map(Path, words[1:]))
    except (OSError, sqlite3.Error, FairwayError) as error:
        print(f"fairway: the state could not be {words[0]}d: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
