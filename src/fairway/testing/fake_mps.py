"""A fake of the program that controls MPS, for tests: its daemon is a process that does nothing.

It writes down how it was called. While there is a file `fails`, its daemon cannot be started.
"""

from __future__ import annotations

from pathlib import Path

_SCRIPT = """\
#!/bin/sh
mark="$CUDA_MPS_PIPE_DIRECTORY/daemon.pid"
alive() { [ -f "$mark" ] && grep -q "^State:[[:space:]]*[A-Ya-y]" "/proc/$(cat "$mark")/status" 2>/dev/null; }
if [ "$1" = -d ]; then
  echo start >>"$0.calls"
  if [ -e "$0.fails" ]; then echo "no GPU can be used with MPS"; exit 1; fi
  setsid sleep 1000 </dev/null >/dev/null 2>&1 &
  echo $! >"$mark"
  exit 0
fi
read -r command
echo "$command" >>"$0.calls"
if ! alive; then echo "Cannot find MPS control daemon process"; exit 1; fi
case "$command" in quit*) kill "$(cat "$mark")"; rm "$mark" ;; esac
"""


class FakeMps:
    """The fake program in a folder."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "nvidia-cuda-mps-control"
        self.program.write_text(_SCRIPT)
        self.program.chmod(0o755)

    def fail(self) -> None:
        """Let no daemon start from now on."""
        self.program.with_name(f"{self.program.name}.fails").touch()

    def calls(self) -> list[str]:
        """How it was called: `start`, or the command for its daemon. Questions whether it runs are left out."""
        path = self.program.with_name(f"{self.program.name}.calls")
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [line for line in lines if line != "get_server_list"]

    def daemon(self, folder: Path) -> int | None:
        """The process of the daemon of a folder; None if it does not run."""
        mark = folder / "pipe" / "daemon.pid"
        return int(mark.read_text()) if mark.exists() else None
