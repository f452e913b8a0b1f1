"""Reading text files so that a failure is one clear line."""

from __future__ import annotations

from pathlib import Path

from fairway.core.errors import InputError


def read_text(path: str | Path) -> str:
    """The whole file as UTF-8 text; a missing, unreadable, binary or empty file is an `InputError`."""
    name = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=name) from None
    except ValueError:  # a NUL character in the name
        raise InputError("cannot be read: this is no file name", path=repr(name)) from None
    if not data.strip():
        raise InputError("the file is empty", path=name)
    if b"\0" in data:
        raise InputError("this is a binary file, not text", path=name, line=data[: data.index(b"\0")].count(b"\n") + 1)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError("this is not UTF-8 text", path=name, line=line) from None
