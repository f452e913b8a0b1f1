"""Writing files so that a failure is one clear line and never leaves half a file behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fairway.core.errors import InputError


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[str]]:
    """Open a text file that appears under its name only when everything was written and flushed to the disk.

    A device or a pipe cannot be replaced, so it is written to directly.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        try:
            with target.open("w", encoding="utf-8") as stream:
                yield stream
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror or error}", path=str(path)) from None
        return
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", path=str(path)) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", path=str(path)) from None
    finally:
        with suppress(OSError):
            Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
