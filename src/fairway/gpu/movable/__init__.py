"""GPU memory of a process that can leave the GPU and come back, without a change to the script.

The library torch-memory-saver takes over `cudaMalloc` and `cudaFree`, below PyTorch's own allocator. It can take the
physical memory away and put it back at the same addresses. It has to be loaded before everything else, so a Python that
can use it starts itself again with `LD_PRELOAD`. Everything here needs only the standard library, and runs in the
script's own Python.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from .mover import Mover

SAVER = "FAIRWAY_MEMORY_SAVER"
"""The folder with the libraries of torch-memory-saver. Without it, nothing happens."""
_LOADED = "FAIRWAY_MEMORY_SAVER_LOADED"
_SETTINGS = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}


def make_movable() -> None:
    """Start this Python again with the library, or, if it is loaded already, wait for requests."""
    loaded, saver = os.environ.pop(_LOADED, ""), os.environ.get(SAVER, "")
    if loaded:
        before = os.environ.pop("LD_PRELOAD", "").split(":")
        kept = before[len(loaded.split(":")) :]
        if kept:
            os.environ["LD_PRELOAD"] = ":".join(kept)
        log = os.environ.get("FAIRWAY_LOG", "")
        if log:
            folder = os.environ.get("FAIRWAY_NODE_DIR") or Path(log).parent
            Mover(Path(folder), loaded.split(":")[0]).install()
    elif saver and "LD_PRELOAD" not in os.environ:
        libraries = _libraries(Path(saver))
        if libraries:
            again = {**os.environ, **_SETTINGS, "LD_PRELOAD": libraries, _LOADED: libraries}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], again)


def _libraries(saver: Path) -> str:
    """What has to be loaded first, with colons between; "" if this Python has no PyTorch that it is made for."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    torch = Path(spec.origin).parent
    try:
        version = re.search(r"^cuda[^=]*= *['\"](\d+)\.", (torch / "version.py").read_text(encoding="utf-8"), re.M)
    except OSError:
        return ""
    if version is None:
        return ""
    library = saver / f"torch_memory_saver_hook_mode_preload_cu{version[1]}.abi3.so"
    runtime = _cuda_runtime(torch, version[1])
    return f"{library}:{runtime}" if runtime is not None and library.exists() else ""


def _cuda_runtime(torch: Path, major: str) -> Path | None:
    """The CUDA runtime that this PyTorch loads. Without it, the library could not be loaded, and no program started."""
    name = f"libcudart.so.{major}"
    places = [torch / "lib", *(torch.parent / "nvidia" / part / "lib" for part in (f"cu{major}", "cuda_runtime"))]
    system = [Path(root) / "lib64" for root in (f"/usr/local/cuda-{major}", "/usr/local/cuda")]
    return next((place / name for place in (*places, *system) if (place / name).exists()), None)
