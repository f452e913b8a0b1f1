"""Space on the disk: submissions are refused before it is full, and running jobs can still be recorded when it is.

A ballast file reserves some space. When the journal finds the disk full, the ballast is deleted, so that there is space
for the events of running jobs. Once there is space again, the ballast is put back.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from fairway.core.errors import FairwayError

KEPT_FREE_BYTES = 64 * 1024 * 1024
BALLAST_BYTES = 16 * 1024 * 1024


class DiskNearlyFullError(FairwayError):
    """The disk is nearly full."""


class DiskSpace:
    """The disk that a state directory is on."""

    def __init__(
        self, folder: Path, *, kept_free_bytes: int = KEPT_FREE_BYTES, ballast_bytes: int = BALLAST_BYTES
    ) -> None:
        self.folder = folder
        self.ballast = folder / "ballast"
        self.kept_free_bytes = kept_free_bytes
        self.ballast_bytes = ballast_bytes

    def free_bytes(self) -> int:
        """The free space."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def refuse_if_full(self) -> None:
        """Raise `DiskNearlyFullError` if there is no space for more jobs."""
        free = self.free_bytes()
        if free < self.kept_free_bytes:
            raise DiskNearlyFullError(
                f"the disk of {self.folder} has only {free // 2**20} MiB left; no jobs are taken below "
                f"{self.kept_free_bytes // 2**20} MiB"
            )
        if not self.ballast.exists():
            self.take_on_ballast()

    def take_on_ballast(self) -> bool:
        """Write the ballast if there is plenty of space; whether it is there now."""
        if self.ballast.exists():
            return True
        if self.free_bytes() < self.kept_free_bytes + 2 * self.ballast_bytes:
            return False
        scratch = self.ballast.with_name("ballast.new")
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, self.ballast_bytes)
            scratch.replace(self.ballast)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            return False
        finally:
            os.close(fd)
        return True

    def drop_ballast(self) -> None:
        """Delete the ballast."""
        self.ballast.unlink(missing_ok=True)
