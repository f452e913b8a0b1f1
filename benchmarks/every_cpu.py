"""Every policy on a mixed cluster, on this CPU and on others as far as it can stand in for them: digests must agree.

    python benchmarks/every_cpu.py [--full] [--only TEXT] [--python COMMAND] [--json FILE]

Each row is a process of its own: OpenBLAS made for another CPU, NumPy without its vector loops, libm without fused
multiply-add, other numbers of BLAS threads, kernels compiled by Numba. `--full` takes 120 jobs instead of 16, which
is a minute or two for each. `--python` adds another interpreter, such as an ARM one under emulation. The runs are those
of `tests/golden/everywhere.py`; CI compares the short ones with what is committed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "golden"))
from everywhere import elsewhere, environments


def main() -> int:
    """Run all columns and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more jobs")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--python", help="another interpreter to run them with")
    parser.add_argument("--json", help="write the digests to this file")
    asked = parser.parse_args()
    arguments = [*(["--full"] if asked.full else []), *(["--only", asked.only] if asked.only else [])]
    columns = {"here": ({}, arguments), **{name: (what, arguments) for name, what in environments().items()}}
    columns["compiled kernels"] = ({}, [*arguments, "--compiled"])
    found, seconds = {}, {}
    for name, (variables, given) in track(
        columns.items(), "CPUs", console=Console(stderr=True), disable=not sys.stderr.isatty()
    ):
        began_s = time.monotonic()
        found[name] = elsewhere(variables, *given)
        seconds[name] = time.monotonic() - began_s
    if asked.python:
        began_s = time.monotonic()
        found[asked.python] = elsewhere({}, *arguments, python=asked.python)
        seconds[asked.python] = time.monotonic() - began_s
    here = found["here"]
    table = Table("where", "runs that differ", "seconds", title=f"{len(here)} runs")
    for name, digests in found.items():
        other = [run for run in here if digests.get(run) != here[run]]
        table.add_row(name, ", ".join(other) or "none", f"{seconds[name]:.0f}")
    Console().print(table)
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1) + "\n")
    return int(any(digests != here for digests in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
