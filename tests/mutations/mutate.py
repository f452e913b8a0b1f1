"""Do the tests notice small mistakes? Make each of `mutations.py` in a copy of the code, and run the tests it names.

    python tests/mutations/mutate.py [NAME ...] [--jobs N] [--json]

A mutation is caught if its tests fail, or do not come to an end. The exit code is 1 if one is missed, and 2 if the
tests fail on the code as it is: then a failure says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
MOST_S = 1800.0
"""How long the tests of a mutation may take. Those of the policies take minutes beside other work."""
COMPILED = ("*.nbc", "*.nbi")
"""What Numba keeps beside a module: compiled functions, also those that have others inside them."""


class Outcome(NamedTuple):
    """What the tests said about a mutation. `by` is the first test that has failed."""

    mutation: Mutation
    caught: bool
    by: str
    took_s: float


def place_of(mutation: Mutation, root: Path = ROOT) -> str:
    """The text of the file that a mutation changes. `ValueError` if what it replaces is not there exactly once."""
    text = (root / "src" / "fairway" / mutation.file).read_text(encoding="utf-8")
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} has {mutation.old!r} {count} times, not once")
    return text


def copy_of(root: Path, folder: Path) -> Path:
    """The code in a folder of its own, with what was compiled, which times of change keep valid."""
    return Path(shutil.copytree(root / "src", folder / "src"))


def make(mutation: Mutation, source: Path, root: Path) -> None:
    """Make the mistake in a copy. Nothing that was compiled from the code before it stays in use."""
    text = place_of(mutation, root)
    file = source / "fairway" / mutation.file
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()
    if "compiled" in text:
        for pattern in COMPILED:
            for compiled in source.rglob(pattern):
                compiled.unlink()
    file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")


def run_tests(root: Path, source: Path, *words: str) -> tuple[int, str]:
    """Run tests on a copy of the code. Returns the exit code, and the first test that has failed."""
    env = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    where = [sys.executable, "-c", "import fairway; print(fairway.__file__)"]
    used = subprocess.run(where, env=env, cwd=root, capture_output=True, text=True, check=True).stdout
    if not used.startswith(str(source)):
        raise RuntimeError(f"the tests would use {used.strip()} instead of the copy in {source}")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", *words]
    try:
        done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, timeout=MOST_S, check=False)
    except subprocess.TimeoutExpired:
        return 1, f"they take more than {MOST_S:.0f} s"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ends with {done.returncode}: {done.stdout}{done.stderr}")
    return done.returncode, failed[0].split(" ", 1)[1].partition(" - ")[0] if failed else ""


def tried(mutation: Mutation, root: Path) -> Outcome:
    """Make one mistake, and see whether its tests notice."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fairway-mutation-") as folder:
        source = copy_of(root, Path(folder))
        make(mutation, source, root)
        code, by = run_tests(root, source, *mutation.tests)
    return Outcome(mutation, code != 0, by, time.monotonic() - began_s)


def chosen(names: Sequence[str]) -> list[Mutation]:
    """The mutations whose names contain one of the texts; all if there is none."""
    found = [one for one in MUTATIONS if not names or any(name in one.name for name in names)]
    if not found:
        raise SystemExit(f"no mutation is called {names[0]!r}; `--list` prints their names")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutate.py", description="Which of the mutations do the tests notice?")
    parser.add_argument("names", nargs="*", help="parts of names; all mutations without any")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many at a time")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose code and tests are used")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    options = parser.parse_args()
    mutations = chosen(options.names)
    if options.list:
        print("\n".join(one.name for one in mutations))
        return 0
    root = options.root.resolve()
    for mutation in mutations:
        place_of(mutation, root)
    with tempfile.TemporaryDirectory(prefix="fairway-mutation-") as folder:
        tests = sorted({test for one in mutations for test in one.tests})
        code, by = run_tests(root, copy_of(root, Path(folder)), "-n", str(options.jobs), *tests)
        if code:
            print(f"the tests fail without a mutation: {by}", file=sys.stderr)
            return 2
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(lambda one: tried(one, root), mutations):
            outcomes.append(outcome)
            verdict = f"caught by {outcome.by}" if outcome.caught else "MISSED"
            line = f"[{len(outcomes)}/{len(mutations)}] {outcome.mutation.name}: {verdict} ({outcome.took_s:.0f} s)"
            print(line, file=sys.stderr, flush=True)
    missed = [one.mutation.name for one in outcomes if not one.caught]
    if options.json:
        rows = [
            {"name": one.mutation.name, "file": one.mutation.file, "caught": one.caught, "by": one.by}
            for one in outcomes
        ]
        print(json.dumps(rows, indent=1))
    else:
        print(f"{len(outcomes) - len(missed)} of {len(outcomes)} mutations are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
