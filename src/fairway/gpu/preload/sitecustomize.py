"""Makes the GPU memory of a PyTorch script movable. Python runs this module before the script.

Only this folder is put into the script's path. If anything here fails, the script runs as if it were not there.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _make_movable() -> None:
    """Load the package by its place: the script's environment need not have Fairway."""
    folder = _HERE.parent / "movable"
    start, places = folder / "__init__.py", [str(folder)]
    spec = importlib.util.spec_from_file_location("_fairway_movable", start, submodule_search_locations=places)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.make_movable()


def _run_the_next() -> None:
    """Run the `sitecustomize` that Python would have run without this one, if there is one."""
    rest = [place for place in sys.path if Path(place or ".").resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _make_movable()
except Exception as error:
    print(f"fairway: GPU memory cannot be moved out: {error}", file=sys.stderr)
_run_the_next()
