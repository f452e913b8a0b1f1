"""Errors that a user can cause. The command line prints their text as one line and exits with code 2."""

from __future__ import annotations


class FairwayError(Exception):
    """Something the user gave cannot be used; `str(error)` is one clear line."""


class InputError(FairwayError):
    """A file, option or value is malformed. Names the file and, where there is one, the line."""

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None) -> None:
        self.message = message
        self.path = path
        self.line = line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(f"{where}{message}")


class PolicyError(FairwayError):
    """A policy returned a decision that breaks a law of the scheduler (see `fairway.core.check`)."""


class EngineError(FairwayError):
    """An engine broke its side of the contract, for example by reporting an event for an unknown job."""
