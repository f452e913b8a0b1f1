"""Whether only we decide what is at a path: a state directory holds commands and code that run as the scheduler's user.

Every directory on the way has to belong to root or to us, and nobody else may write to it, except in directories such
as /tmp, where users cannot touch each other's files. Links are followed as the kernel follows them.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from fairway.core.errors import FairwayError

_MOST_LINKS = 40


class UntrustedPathError(FairwayError):
    """Somebody else can decide what is at a path."""


def refuse_untrusted(folder: Path) -> None:
    """Raise `UntrustedPathError` if a directory is not ours alone. It need not exist yet."""
    at, todo, links = Path("/"), list(folder.absolute().parts[1:]), 0
    while todo:
        _refuse_open(folder, at)
        name = todo.pop(0)
        if name == "..":
            at = at.parent
            continue
        try:
            about = (at / name).lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise UntrustedPathError(f"{at / name}: {error.strerror}") from None
        if not stat.S_ISLNK(about.st_mode):
            at = at / name
            continue
        _refuse_foreign(folder, at / name, about)
        links += 1
        if links > _MOST_LINKS:
            raise UntrustedPathError(f"{folder}: there are too many links on the way")
        target = (at / name).readlink()
        at = Path("/") if target.is_absolute() else at
        todo = [part for part in target.parts if part != "/"] + todo
    _refuse_open(folder, at)
    owner = at.stat().st_uid
    if owner != os.geteuid():
        raise UntrustedPathError(
            f"{folder} belongs to {_user(owner)}, and you are {_user(os.geteuid())}. A scheduler runs what its state "
            "directory says, so it runs only in a directory of its own user"
        )


def _refuse_open(folder: Path, at: Path) -> None:
    """Refuse a directory on the way to which others can write, or that is theirs."""
    about = at.stat()
    _refuse_foreign(folder, at, about)
    others = about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and not _is_own_group(about.st_gid))
    if others and not about.st_mode & stat.S_ISVTX:
        raise UntrustedPathError(f"{folder} is not safe: others can write to {at}. `chmod go-w {at}` changes that")


def _refuse_foreign(folder: Path, at: Path, about: os.stat_result) -> None:
    if about.st_uid not in (0, os.geteuid()):
        whose = f"belongs to {_user(about.st_uid)}"
        raise UntrustedPathError(
            f"{folder} {whose}" if at == folder.absolute() else f"{folder} is not safe: {at}, on the way to it, {whose}"
        )


def _is_own_group(gid: int) -> bool:
    """Whether a group has no members but us and root: many systems give each user such a group."""
    try:
        members = set(grp.getgrgid(gid).gr_mem)
        me = pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return members <= {me.pw_name, "root"} and gid in (me.pw_gid, 0)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
