"""Whether a program could be started on this machine, asked before a job is taken.

The question is asked as the user that the job would run as, in a process of its own: a directory may be private, or on
a file system where root may look at nothing, and a submitter learns only what that user could see as well. A file
system that does not answer delays nothing else; the job is taken, and its start will show.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import threading
import time
from typing import Any, NamedTuple

_QUESTION = """\
if ! cd -- "$1" 2>/dev/null; then
  if [ -d "$1" ]; then exit 12; fi
  if [ -e "$1" ]; then exit 11; fi
  exit 10
fi
case $2 in
"") exit 0;;
*/*)
  if [ ! -e "$2" ]; then exit 13; fi
  if [ -d "$2" ]; then exit 14; fi
  if [ ! -x "$2" ]; then exit 15; fi
  exit 0;;
esac
set -f; IFS=:
for folder in $3; do
  file=${folder:-.}/$2
  if [ -f "$file" ] && [ -x "$file" ]; then exit 0; fi
done
if [ -f "./$2" ]; then exit 17; fi
exit 16
"""
_ANSWERS = {
    10: "{cwd}: no such directory to run it in. Choose another one with --chdir",
    11: "{cwd}: not a directory to run it in. Choose another one with --chdir",
    12: "{cwd}: the job may not enter this directory. Choose another one with --chdir",
    13: "{program}: no such file in {cwd}",
    14: "{program}: this is a directory, not a program",
    15: "{program}: not executable. Type `chmod +x {program}`, or name its interpreter, as in `bash {program}`",
    16: "{program}: no such program in the PATH of the job",
    17: "{program}: no such program in the PATH of the job. There is one in {cwd}: write ./{program}",
}
_PATIENCE_S = 5.0
"""How long a file system may take to answer."""
_REMEMBERED_S, _MOST_REMEMBERED = 2.0, 1000


class Startable(NamedTuple):
    """What a job would start: a program in a directory, found in `path`. `account` is "" for our own user.

    Without a program, only the directory is asked about.
    """

    program: str
    cwd: str
    path: str
    account: str


class StartCheck:
    """Asks whether programs can be started. What can be is remembered for a moment, for streams of equal jobs."""

    def __init__(self) -> None:
        self._known: dict[Startable, float] = {}
        self._lock = threading.Lock()

    def problem(self, wish: Startable) -> str:
        """What is wrong; "" if nothing is, or nobody can say. Any thread may call this."""
        now_s = time.monotonic()
        if self._known.get(wish, 0.0) > now_s:
            return ""
        problem = start_problem(wish)
        if not problem:
            with self._lock:
                if len(self._known) >= _MOST_REMEMBERED:
                    self._known.clear()
                self._known[wish] = now_s + _REMEMBERED_S
        return problem


def start_problem(wish: Startable) -> str:
    """What is wrong; "" if nothing is, or nobody can say."""
    try:
        asked = subprocess.Popen(
            ["/bin/sh", "-c", _QUESTION, "sh", wish.cwd, wish.program, wish.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            **_as_user(wish.account),
        )
        code = asked.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        asked.kill()
        return ""
    except (OSError, KeyError, ValueError):
        return ""
    return _ANSWERS.get(code, "").format(program=wish.program, cwd=wish.cwd)


def _as_user(account: str) -> dict[str, Any]:
    if not account:
        return {}
    user = pwd.getpwnam(account)
    groups = os.getgrouplist(account, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}
