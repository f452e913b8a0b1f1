"""GPU memory that moves: an unmodified script, with stand-ins for PyTorch, its library and the CUDA runtime.

The stand-ins keep "device memory" in ordinary memory. They are made with the machine's C compiler.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairway.runtime.processes.keeper import descendants
from fairway.runtime.processes.movable_memory import PRELOAD
from fairway.runtime.processes.moves import REQUEST
from fairway.testing.waiting import WAIT_S, wait_for

CC = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")
SIZE = 8 << 20

RUNTIME = """
#include <stdlib.h>
#include <stdio.h>
static int registered = 0;
int cudaMallocHost(void **out, size_t size) { *out = malloc(size); return 0; }
int cudaFreeHost(void *at) { free(at); return 0; }
int cudaHostRegister(void *at, size_t size, unsigned flags) { registered++; return 0; }
int cudaHostUnregister(void *at) { registered--; return 0; }
int cudaSetDevice(int device) { return 0; }
int registered_buffers(void) { return registered; }
"""
SAVER = """
#include <stdlib.h>
#include <string.h>
int cudaMallocHost(void **out, size_t size);
int cudaFreeHost(void *at);
static char *device = 0; static void *host = 0; static size_t device_bytes = 0;
char *device_memory(size_t size) { device = malloc(size); device_bytes = size; return device; }
int tms_pause(const char *tag) {
  if (cudaMallocHost(&host, device_bytes)) return 1;
  memcpy(host, device, device_bytes); memset(device, 0, device_bytes); return 0;
}
int tms_resume(const char *tag) { memcpy(device, host, device_bytes); cudaFreeHost(host); return 0; }
"""
TORCH = """
import ctypes
class cuda:
    capturing = False
    is_initialized = staticmethod(lambda: True)
    is_current_stream_capturing = staticmethod(lambda: cuda.capturing)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    synchronize = staticmethod(lambda device: None)
    memory_reserved = staticmethod(lambda device: 8 << 20)
    memory_snapshot = staticmethod(lambda: [{"total_size": 8 << 20}])
"""
SCRIPT = """
import ctypes, os, sys, time, torch
saver = ctypes.CDLL(os.environ["SAVER_LIBRARY"]); saver.device_memory.restype = ctypes.c_void_p
at = saver.device_memory(ctypes.c_size_t(8 << 20)); want = bytes(range(256)) * (8 << 12)
ctypes.memmove(at, want, len(want))
print("LD_PRELOAD" in os.environ, flush=True)
end = time.monotonic() + 120
while time.monotonic() < end and not os.path.exists(sys.argv[1]):
    assert ctypes.string_at(at, 8 << 20) == want, "the memory is not there"
    time.sleep(0.001)
print(ctypes.CDLL(None).registered_buffers(), flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the stand-ins."""
    torch, saver = tmp_path / "site" / "torch", tmp_path / "saver"
    for folder in (torch / "lib", saver, tmp_path / "attempt"):
        folder.mkdir(parents=True)
    (torch / "__init__.py").write_text(TORCH)
    (torch / "version.py").write_text("from typing import Optional\ncuda: Optional[str] = '13.0'\n")
    (tmp_path / "site" / "sitecustomize.py").write_text("import os; os.environ['OWN_SITECUSTOMIZE'] = 'ran'\n")
    runtime = torch / "lib" / "libcudart.so.13"
    _compile(RUNTIME, runtime, "-Wl,-soname,libcudart.so.13")
    library = saver / "torch_memory_saver_hook_mode_preload_cu13.abi3.so"
    _compile(SAVER, library, str(runtime), "-Wl,-z,lazy")
    return tmp_path


def _compile(source: str, out: Path, *options: str) -> None:
    code = out.with_suffix(".c")
    code.write_text(source)
    subprocess.run([str(CC), "-shared", "-fPIC", "-o", str(out), str(code), *options], check=True)


class Script:
    """The script, started as the scheduler starts it."""

    def __init__(self, place: Path, script: str = SCRIPT, **more: str) -> None:
        self.attempt, self.end = place / "attempt", place / "end"
        path = f"{PRELOAD}:{place / 'site'}"
        library = place / "saver" / "torch_memory_saver_hook_mode_preload_cu13.abi3.so"
        env = {"PYTHONPATH": path, "FAIRWAY_LOG": str(self.attempt / "rank-0.log"), "SAVER_LIBRARY": str(library)}
        env |= {"FAIRWAY_MEMORY_SAVER": str(place / "saver"), "PATH": os.environ["PATH"], **more}
        argv = [sys.executable, "-c", script, str(self.end)]
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def wish(self, **wish: Any) -> None:
        (self.attempt / "memory.new").write_text(json.dumps(wish))
        (self.attempt / "memory.new").replace(self.attempt / "memory")

    def ask(self, **wish: Any) -> None:
        self.wish(**wish)
        os.kill(self.process.pid, REQUEST)

    def answers(self, state: str) -> dict[str, Any]:
        """Wait for an answer."""

        def told() -> dict[str, Any]:
            try:
                answer: dict[str, Any] = json.loads((self.attempt / f"moved-{self.process.pid}").read_text())
            except (OSError, ValueError):
                return {}
            return answer if answer.get("state") == state else {}

        return wait_for(told, f"the answer {state!r}")

    def is_ready(self) -> None:
        wait_for((self.attempt / f"moves-{self.process.pid}").exists, "it to be ready")
        # The script has to be past its first lines.
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "False\n"

    def finish(self) -> str:
        self.end.touch()
        out, _ = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, out
        return out


def test_memory_leaves_and_comes_back_twice(place: Path) -> None:
    script = Script(place)
    script.is_ready()
    for _ in range(2):
        script.ask(memory="out", most_bytes=1 << 30)
        assert script.answers("out")["bytes"] == SIZE
        script.wish(memory="in", keep=True)
        script.answers("in")
        (script.attempt / f"moved-{script.process.pid}").unlink()
    assert script.finish() == "1\n", "one buffer is pinned, and used again"


def test_buffers_are_given_back_if_the_host_needs_them(place: Path) -> None:
    script = Script(place)
    script.is_ready()
    script.ask(memory="out", most_bytes=1 << 30)
    script.answers("out")
    script.wish(memory="in", keep=False)
    script.answers("in")
    assert script.finish() == "0\n"


def test_host_memory_is_pinned_ahead(place: Path) -> None:
    script = Script(place)
    script.is_ready()
    script.ask(memory="pin", most_bytes=1 << 30)
    time.sleep(0.5)
    script.ask(memory="out", most_bytes=1 << 30)
    script.answers("out")
    script.wish(memory="in", keep=True)
    script.answers("in")
    assert script.finish() == "1\n"


def test_more_than_the_host_may_take_stays(place: Path) -> None:
    script = Script(place)
    script.is_ready()
    script.ask(memory="out", most_bytes=SIZE - 1)
    assert "more than the host may take" in script.answers("refused")["problem"]
    script.finish()


def test_a_graph_that_is_being_recorded_is_not_disturbed(place: Path) -> None:
    script = Script(
        place, SCRIPT.replace("import ctypes, os", "import torch; torch.cuda.capturing = True\nimport ctypes, os")
    )
    script.is_ready()
    script.ask(memory="out", most_bytes=1 << 30)
    script.answers("busy")
    script.finish()


def test_a_process_without_the_handler_would_end_by_the_signal() -> None:
    """That is why the keeper looks whether a process has one before it asks."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    os.kill(process.pid, REQUEST)
    assert process.wait(timeout=WAIT_S) == -REQUEST


@pytest.mark.parametrize("missing", ["torch", "runtime", "library"])
def test_a_script_runs_as_ever_where_something_is_missing(place: Path, missing: str) -> None:
    if missing == "torch":
        shutil.rmtree(place / "site" / "torch")
    elif missing == "runtime":
        (place / "site" / "torch" / "version.py").write_text("cuda: Optional[str] = '99.0'\n")
    else:
        shutil.rmtree(place / "saver")
    script = Script(place, "import os; print(os.environ.get('LD_PRELOAD'), os.environ.get('OWN_SITECUSTOMIZE'))")
    assert script.finish() == "None ran\n"
    assert not list(script.attempt.glob("moves-*"))


def test_what_the_script_starts_is_not_changed(place: Path) -> None:
    code = "import os, subprocess; print(subprocess.run(['env'], capture_output=True, text=True).stdout)"
    script = Script(place, code)
    out = script.finish()
    assert "LD_PRELOAD" not in out
    assert "OWN_SITECUSTOMIZE=ran" in out


def test_a_process_that_the_script_forks_does_not_answer(place: Path) -> None:
    code = SCRIPT.replace("end = time", "child = os.fork()\nif not child: time.sleep(120); os._exit(0)\nend = time")
    script = Script(place, code + "\nos.kill(child, 9)\n")
    script.is_ready()
    children: list[int] = []
    while not children:
        children = descendants(script.process.pid)
    script.wish(memory="out", most_bytes=1 << 30)
    os.kill(children[0], REQUEST)
    time.sleep(0.3)
    assert not list(script.attempt.glob("moved-*"))
    script.wish(memory="in")
    script.finish()
    assert signal.SIGRTMIN < REQUEST
