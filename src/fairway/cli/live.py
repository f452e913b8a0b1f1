"""What all commands of the live scheduler share: how to reach it, what they print, and their exit codes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fairway.cli.options import flag, option
from fairway.cli.visible import visible_json, visible_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairway.client import Client

BAD_INPUT, NOT_UP, NO_SUCH_JOB, NOT_ALLOWED = 2, 3, 4, 5
_BY_STATUS = {401: NOT_ALLOWED, 403: NOT_ALLOWED, 404: NO_SUCH_JOB, 409: NOT_ALLOWED}


@dataclass(frozen=True)
class At:
    """Which scheduler is meant."""

    state: Annotated[
        str | None, option("--state", "The state directory. Default: $FAIRWAY_STATE or ~/.local/state/fairway", "DIR")
    ] = None
    url: Annotated[
        str | None, option("--url", "A scheduler on TCP, with $FAIRWAY_TOKEN. Default: $FAIRWAY_URL", "URL")
    ] = None

    @property
    def folder(self) -> Path:
        """The state directory."""
        return state_folder(self.state)

    def client(self, *, timeout_s: float = 60.0) -> Client:
        """A connection to the scheduler."""
        from fairway.client import Client

        return Client(Path(self.state) if self.state is not None else None, self.url, timeout_s=timeout_s)


@dataclass(frozen=True)
class Where(At):
    """Which scheduler is meant, and how to show its answers."""

    json: Annotated[bool, flag("--json", "Print JSON")] = False

    def show(self, told: Any, picture: Callable[[], RenderableType | str]) -> None:
        """Print an answer as JSON or for people."""
        if self.json:
            sys.stdout.writelines(json_lines(told))
            return
        seen = picture()
        if isinstance(seen, str):
            sys.stdout.write(visible_lines(seen))
            return
        # Slow to load, and not needed for a line of text.
        from fairway.cli import output

        output.show(seen)


def program() -> str:
    """What to type to call this program: `fairway`, or its path if the shell would not find it."""
    if shutil.which("fairway") is not None:
        return "fairway"
    beside = Path(sys.executable).with_name("fairway")
    if not beside.exists():
        return f"{sys.executable} -m fairway"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)


def state_folder(state: str | None) -> Path:
    """The state directory that was given, or the default."""
    from fairway.client import default_folder

    return (Path(state) if state is not None else default_folder()).expanduser().absolute()


def json_lines(told: Any) -> Iterable[str]:
    """A list with one element per line, so that it can be grepped, or an object."""
    import json

    if not isinstance(told, list):
        yield visible_json(json.dumps(told, indent=1, ensure_ascii=False)) + "\n"
        return
    yield "["
    for index, one in enumerate(told):
        yield (",\n" if index else "\n") + visible_json(json.dumps(one, ensure_ascii=False))
    yield "\n]\n"


def exit_code_of(error: Exception) -> int:
    """The exit code of an error that a user can cause."""
    from fairway.client import NotUpError, RefusedError

    if isinstance(error, NotUpError):
        return NOT_UP
    if isinstance(error, RefusedError):
        return _BY_STATUS.get(error.status, BAD_INPUT)
    return int(getattr(error, "exit_code", BAD_INPUT))


def for_each(
    where: Where,
    names: Iterable[str],
    act: Callable[[str], list[dict[str, Any]]],
    tell: Callable[[Mapping[str, Any]], str],
) -> None:
    """Do something to several jobs and print the result, as JSON or as one line per job (`tell`).

    If one is refused the others are still done; the refusals are printed after them.
    """
    from fairway.cli import output
    from fairway.client import ClientError, RefusedError

    rows: list[dict[str, Any]] = []
    refused: list[ClientError] = []
    for name in names:
        try:
            rows += act(name)
        except RefusedError as error:
            refused.append(error)
        except ClientError as error:
            # The scheduler cannot be reached, so the other jobs need not be tried.
            refused.append(error)
            break
    where.show(rows, lambda: "".join(map(tell, rows)))
    sys.stdout.flush()
    for one in refused[:-1]:
        output.say("error", str(one))
    if refused:
        raise refused[-1]


def told_state(row: Mapping[str, Any]) -> str:
    """A job and its state, in one line."""
    return f"job {row['id']} {place_of(row)}\n"


def place_of(row: Mapping[str, Any]) -> str:
    """The state of a job, with the reason if there is one."""
    reason = row.get("reason") or ""
    why = f": {reason}" if reason and reason.upper() != row["state"] else ""
    return f"{row['state']}{why}"


def told_ended(row: Mapping[str, Any]) -> str:
    """One line about a job that had ended before."""
    return f"job {row['id']} had ended already: {row['state']}\n"
