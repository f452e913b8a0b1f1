"""The checkpoints of a job on disk: each is complete before it counts, and the last that counted is never overwritten.

A list of them, newest first, lies beside them. A process may be killed at any instant: what it was writing then has
another name, is not in the list, and is removed by the next attempt.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_LIST = "checkpoints.json"
_PART = ".part"


class Checkpoint(NamedTuple):
    """A checkpoint that counts: its path, the number of steps trained, and what the session saved with it."""

    path: Path
    step: int
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one job. Inside `folder` the last `keep` are kept."""

    def __init__(self, folder: Path, *, keep: int = 2, resume: bool = True, mark: str = "") -> None:
        if keep < 1:
            raise ValueError(f"at least one checkpoint must be kept, not {keep}")
        self.folder = folder
        self.keep = keep
        self._mark = mark
        self._known = _read(folder) if resume else []

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that counts and is still there."""
        return next((one for one in self._known if one.path.exists()), None)

    def path(self, step: int) -> Path:
        """A name for the checkpoint after this many steps; no other attempt of the job has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"step-{step}{self._mark}"

    def part(self, step: int) -> Path:
        """Where to write it before it is complete."""
        path = self.path(step)
        return path.with_name(path.name + _PART)

    def write(self, step: int, write: Callable[[Path], object]) -> Path:
        """Have a checkpoint written and flushed to disk; it appears under its name when it is complete."""
        part = self.part(step)
        remove(part)
        try:
            write(part)
            return self.complete(step)
        except BaseException:
            # On a full disk a partial file would take the room of everything else.
            remove(part)
            raise

    def complete(self, step: int) -> Path:
        """Give a complete checkpoint its name."""
        part, path = self.part(step), self.path(step)
        if not part.exists():
            raise FileNotFoundError(f"the checkpoint was to be written to {part}, and nothing is there")
        sync(part)
        if path.is_dir():
            remove(path)
        part.replace(path)
        _sync_one(self.folder)
        return path

    def register(self, path: Path, step: int, state: Mapping[str, Any]) -> None:
        """Let a checkpoint count from now on, and remove those that are no longer needed."""
        others = [one for one in self._known if one.path != path]
        self._known = [Checkpoint(path, step, dict(state)), *others]
        kept, old = self._known[: self.keep], self._known[self.keep :]
        entries = [{"path": _told(one.path, self.folder), "step": one.step, "state": one.state} for one in kept]
        self.folder.mkdir(parents=True, exist_ok=True)
        _write_over(self.folder / _LIST, entries)
        self._known = kept
        for one in old:
            if one.path.parent == self.folder:
                remove(one.path)

    def clear_parts(self) -> None:
        """Remove what earlier attempts did not finish; another rank of this attempt may already be writing."""
        if self.folder.is_dir():
            for part in self.folder.glob(f"*{_PART}"):
                if not self._mark or not part.name.endswith(self._mark + _PART):
                    remove(part)


def sync(path: Path) -> None:
    """Flush a file, or everything in a directory, to disk, and its name with it."""
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        _sync_one(one)
    _sync_one(path.parent)


def remove(path: Path) -> None:
    """Remove a file or a directory; what cannot be removed stays."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return


def _sync_one(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_over(path: Path, content: Any) -> None:
    scratch = path.with_name(path.name + _PART)
    with scratch.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    _sync_one(path.parent)


def _told(path: Path, folder: Path) -> str:
    """A path in the list: relative if possible, so that the folder may be moved."""
    return path.name if path.parent == folder else str(path.absolute())


def _read(folder: Path) -> list[Checkpoint]:
    try:
        entries = json.loads((folder / _LIST).read_text(encoding="utf-8"))
        return [Checkpoint(folder / one["path"], int(one["step"]), dict(one["state"])) for one in entries]
    except (OSError, ValueError, KeyError, TypeError):
        return []
