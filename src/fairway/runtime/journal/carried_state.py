"""A state directory that goes from machine to machine: saved to a shared directory, and restored from there.

A journal needs a local disk while a scheduler writes to it. A pilot (see `cli/pilot_script.py`) saves a copy every few
seconds and once more at its end, and the next pilot, on whatever machine, begins with it. A copy is taken in one
transaction beside a scheduler that goes on writing. A file appears under its name only when all of it is on disk.

    python -m fairway.runtime.journal.carried_state save STATE SHARED
    python -m fairway.runtime.journal.carried_state restore SHARED STATE
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

JOURNAL = "journal.db"
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
        with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=rw", uri=True)) as source:
            with closing(sqlite3.connect(copy)) as made:
                source.backup(made)
        # From before the copy was taken: what was written since then is newer, and is saved the next time.
        os.utime(copy, ns=(newest_ns, newest_ns))
        _put(copy, target)
    finally:
        copy.unlink(missing_ok=True)
    return True


def restore(shared: Path, state: Path) -> bool:
    """Put what was saved into a state directory that has no journal yet. Returns whether there was a saved journal."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (state / JOURNAL).exists() or not (shared / JOURNAL).exists():
        return False
    for source in (*_files(shared), shared / JOURNAL):
        _put(source, state / source.name)
    return True


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
    verbs = {"save": save, "restore": restore}
    if len(words) != 3 or words[0] not in verbs:
        print("usage: carried_state save STATE SHARED | restore SHARED STATE", file=sys.stderr)
        return 2
    try:
        verbs[words[0]](Path(words[1]), Path(words[2]))
    except (OSError, sqlite3.Error) as error:
        print(f"fairway: the state could not be {words[0]}d: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
