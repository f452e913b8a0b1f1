"""The parts of a gang over several nodes, seen from the keeper of one of them: when a rank fails, all parts stop.

The keeper of the part in which it happens says so in a file beside all parts, `attempt-N/ending`. The others look for
it and stop their ranks, whether a scheduler runs or not. A network file system may show the file late.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairway.runtime.processes.ranks import CHECKPOINTED


class Siblings:
    """The other parts of a gang; none if `launch` is that of a whole gang."""

    def __init__(self, directory: Path, launch: dict[str, Any], write_new: Callable[[Path, Any], bool]) -> None:
        self._file = directory.parent / "ending" if launch.get("of_parts", 1) > 1 else None
        self._write_new = write_new
        self._told = False

    def tell(self, codes: list[int], cause: str) -> None:
        """Tell the others that ranks of this part have ended like this, if they can no longer do their work.

        Ranks that have saved their state, or that were asked to stop, leave the others the time to save theirs.
        """
        if self._file is None or self._told or not (any(codes) or cause in ("start", "limit")):
            return
        self._told = True
        saved = all(code in (0, CHECKPOINTED) for code in codes) and cause != "start"
        with contextlib.suppress(OSError):
            self._write_new(self._file, {"soon": not saved and cause not in ("request", "limit")})

    def ending(self, read: Callable[[Path], str]) -> bool | None:
        """Whether the ranks of another part have failed, so that ours have to stop soon, or may take their time.

        None if nothing is known to have happened.
        """
        if self._file is None or self._told:
            return None
        try:
            return bool(json.loads(read(self._file))["soon"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return True
