"""What becomes of the names in other schedulers' formats that Fairway does not carry out.

Each format sorts its names. Some would make another job of it if they were ignored, such as a container: these are
refused. Others only concern a cloud, or how another site keeps its books: these are left out, and the owner is told.
A name in neither table is refused as well, because nobody knows what it would have changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple


class ForeignNames(NamedTuple):
    """The names of a format that do not become terms of a job, each with a reason or with what to type instead.

    An entry that ends with `*` stands for all names that begin like it. A reason may be empty where the name says it.
    """

    refused: Mapping[str, str]
    left_out: Mapping[str, str]

    def refusal(self, name: str, taken: Iterable[str]) -> str | None:
        """Why a name is refused; None if it is left out. `taken` are the names that the format carries out."""
        if name in self.left_out:
            return None
        reason = self.explicit_refusal(name)
        if reason is not None:
            return reason
        close = get_close_matches(name, [*taken, *self.left_out], n=1)
        return f"no such option is known here{f'; did you mean {close[0]}?' if close else '. Take it out'}"

    def explicit_refusal(self, name: str) -> str | None:
        """Why a name is refused that is known to make another job of it."""
        return next((reason for one, reason in self.refused.items() if _stands_for(one, name)), None)

    def remark(self, shown: str, name: str) -> str:
        """What the owner is told of a name that is left out. `shown` is the name as it was written."""
        reason = self.left_out[name]
        return f"{shown} is left out{f': {reason}' if reason else ''}"


def _stands_for(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
