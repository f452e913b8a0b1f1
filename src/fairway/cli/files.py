"""Output files: checked before the work starts, and written so that no partial file is left."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairway.core.errors import InputError

STDOUT = "-"
_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/null")


def check_outputs(outputs: Mapping[str, str | None], inputs: Sequence[str] = ()) -> None:
    """Refuse, before anything is computed, an output that cannot be written or that would overwrite another file.

    `outputs` maps an option to the path it was given. `-` is the standard output where the command offers it.
    """
    taken = {Path(path).resolve(): "an input" for path in inputs if Path(path).is_file()}
    folders = [Path(path).resolve() for path in inputs if Path(path).is_dir()]
    for option, name in outputs.items():
        if name is None or name in _STREAMS:
            continue
        if name == STDOUT:
            _check_stdout(option)
            continue
        path = Path(name)
        _check_place(option, path)
        where = path.resolve()
        if where in taken:
            raise InputError(f"{option} {name}: the same file is {taken[where]}")
        if any(folder in where.parents for folder in folders):
            raise InputError(f"{option} {name}: this is inside a directory that is an input")
        taken[where] = f"also given for {option}"


def _check_stdout(option: str) -> None:
    if option not in ("--json", "--output"):
        raise InputError(f"{option} cannot go to the standard output; name a file")


def _check_place(option: str, path: Path) -> None:
    if not path.name or path.is_dir():
        raise InputError(f"{option} {str(path)!r} is a directory, not a file")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no directory {str(path.parent)!r}")
    if _is_special(path):
        if option not in ("--json", "--html"):
            raise InputError(f"{option} {path}: this is not a regular file")
    elif not os.access(path.parent, os.W_OK):
        raise InputError(f"{option} {path}: the directory cannot be written to")


def _is_special(path: Path) -> bool:
    """A device or a pipe: it must be written to, not replaced."""
    return path.exists() and not path.is_file()


def write_chunks(path: str, chunks: Iterable[str]) -> None:
    """Write text to a file, which appears only when it is complete, or to a stream or device."""
    from fairway.traces.files import atomic_write

    if path == STDOUT:
        sys.stdout.writelines(chunks)
        sys.stdout.flush()
    elif _is_special(Path(path)):
        try:
            with Path(path).open("w", encoding="utf-8") as stream:
                stream.writelines(chunks)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror or error}", path=path) from None
    else:
        with atomic_write(path) as stream:
            stream.writelines(chunks)


def json_chunks(document: Mapping[str, Any]) -> Iterator[str]:
    """A JSON object with one key per line; a list of objects has one object per line, so that it can be grepped."""
    import json

    opening = "{\n"
    for key, value in document.items():
        yield f"{opening}{json.dumps(key)}: "
        opening = ",\n"
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield "[\n"
            for index, item in enumerate(value):
                yield (",\n" if index else "") + json.dumps(item, allow_nan=False)
            yield "\n]"
        else:
            yield json.dumps(value, allow_nan=False)
    yield "\n}\n"
