"""Space on the disk: submissions are refused before it is full, and running jobs can still be recorded when it is.

A ballast file reserves some space. When the journal finds the disk full, the ballast is deleted, so that there is space
for the events of running jobs. Once there is space again, the ballast is put back.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fairway.core.errors import FairwayError
from fairway.runtime.journal.disk_room import ROOM_FILES, room_in

KEPT_FREE_BYTES = 64 * 1024 * 1024
BALLAST_BYTES = 16 * 1024 * 1024


class DiskNearlyFullError(FairwayError):
    """The disk is nearly full."""


class DiskSpace:
    """The disk that a state directory is on."""

    def __init__(
        self,
        folder: Path,
        *,
        kept_free_bytes: int = KEPT_FREE_BYTES,
        kept_free_files: int = ROOM_FILES,
        ballast_bytes: int = BALLAST_BYTES,
    ) -> None:
        self.folder = folder
        self.ballast = folder / "ballast"
        self.kept_free_bytes = kept_free_bytes
        self.kept_free_files = kept_free_files
        self.ballast_bytes = ballast_bytes

    def free_bytes(self) -> int:
        """The free space."""
        return room_in(self.folder).bytes

    def why_full(self) -> str:
        """Why there is no space for more jobs; empty if there is."""
        room = room_in(self.folder)
        if room.bytes < self.kept_free_bytes:
            return (
                f"the disk of {self.folder} has only {room.bytes // 2**20} MiB left; no jobs are taken below "
                f"{self.kept_free_bytes // 2**20} MiB"
            )
        if room.files < self.kept_free_files:
            return (
                f"the disk of {self.folder} has only {room.files:,.0f} free inodes left; no jobs are taken below "
                f"{self.kept_free_files:,}"
            )
        return ""

    def refuse_if_full(self) -> None:
        """Raise `DiskNearlyFullError` if there is no space for more jobs."""
        why = self.why_full()
        if why:
            raise DiskNearlyFullError(why)
        if not self.ballast.exists():
            self.take_on_ballast()

    def take_on_ballast(self) -> bool:
        """Write the ballast if there is plenty of space; whether it is there now. Everything works without it."""
        if self.ballast.exists():
            return True
        if self.free_bytes() < self.kept_free_bytes + 2 * self.ballast_bytes:
            return False
        scratch = self.ballast.with_name("ballast.new")
        try:
            fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self.ballast_bytes)
                scratch.replace(self.ballast)
            finally:
                os.close(fd)
        except OSError:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            return False
        return True

    def drop_ballast(self) -> None:
        """Delete the ballast."""
        with suppress(OSError):
            self.ballast.unlink(missing_ok=True)
