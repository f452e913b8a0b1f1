"""The scheduler as a systemd user service. This does not need root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fairway.core.errors import InputError
from fairway.runtime.processes.containment import OWN

UNIT = "fairway.service"


def install(state: Path, options: Sequence[str]) -> None:
    """Write the unit and start it; print it if there is no systemd."""
    from fairway.cli import output

    text = unit(state, options)
    if not _has_systemd():
        sys.stdout.write(text)
        output.say("note", f"there is no systemd for this user, so nothing was installed; this is the unit, {UNIT}")
        return
    path = _folder() / UNIT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    for words in (["daemon-reload"], ["enable", UNIT], ["restart", UNIT]):
        done = subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            why = " ".join(done.stderr.split()) or f"it ended with {done.returncode}"
            raise InputError(f"systemctl --user {' '.join(words)}: {why}", path=str(path))
    sys.stdout.write(f"fairway: {path} is installed and started; `fairway status` shows it\n")
    output.say("note", "`loginctl enable-linger` keeps it running while you are not logged in")


def unit(state: Path, options: Sequence[str]) -> str:
    """The unit file. Stopping it stops only the scheduler: jobs keep running, and the next scheduler takes them over.

    It has the options that were given now. Other options are as last time, as with any `fairway up`.
    """
    words = [sys.executable, "-m", "fairway", "up", "--state", str(state), *options]
    return (
        "[Unit]\n"
        f"Description=Fairway, the GPU scheduler of {_plain(str(state))}\n"
        "\n"
        "[Service]\n"
        f"ExecStart={' '.join(map(_quoted, words))}\n"
        f"Environment={_quoted('PATH=' + os.environ.get('PATH', os.defpath), command=False)}\n"
        "KillMode=process\n"
        # A group of its own, so that jobs can be contained and limited. Jobs outlive the scheduler in it.
        "Delegate=yes\n"
        f"DelegateSubgroup={OWN}\n"
        "Restart=on-failure\n"
        "RestartSec=2\n"
        "\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )


def _plain(text: str) -> str:
    if any(not character.isprintable() for character in text):
        raise InputError(f"{text!r} cannot be written in a systemd unit")
    return text.replace("%", "%%")


def _quoted(text: str, *, command: bool = True) -> str:
    """A word quoted for systemd, with nothing that it would expand."""
    inside = _plain(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inside.replace("$", "$$") if command else inside}"'


def _folder() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "systemd" / "user"


def _has_systemd() -> bool:
    """Whether the services of this user are run by systemd."""
    if shutil.which("systemctl") is None:
        return False
    words = ["systemctl", "--user", "show-environment"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0
