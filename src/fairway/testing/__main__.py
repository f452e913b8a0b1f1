"""`python -m fairway.testing POLICY --seed N`: repeat a failure that `check_policy` found.

With `--replay` this is the other process of `check_policy`: it reads snapshots from stdin and prints digests of its
decisions.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import importlib.util
import json
import pickle
import sys
from typing import Any

from fairway.core.snapshot_json import from_json
from fairway.policies import load_plugin
from fairway.testing.contract import check_policy, decision_digest


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fairway.testing", description="Check a policy's contract.")
    parser.add_argument("policy", nargs="?", help="NAME or NAME:key=value,…")
    parser.add_argument("--seed", type=int, action="append", help="a seed to check; may be given several times")
    parser.add_argument("--plugin", action="append", default=[], help="a Python file that registers policies")
    parser.add_argument("--work-conserving", action="store_true", help="no job may wait beside enough idle GPUs")
    parser.add_argument("--replay", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay:
        _replay()
        return 0
    if options.policy is None:
        parser.error("which policy?")
    for path in options.plugin:
        load_plugin(path)
    try:
        check_policy(options.policy, seeds=options.seed or range(4), work_conserving=options.work_conserving)
    except AssertionError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.policy}: keeps the contract")
    return 0


def _replay() -> None:
    question: dict[str, Any] = json.load(sys.stdin)
    sys.path[:] = question["path"]
    cls: Any = _module(question["module"], question["file"])
    for part in question["class"].split("."):
        cls = getattr(cls, part)
    policy = cls(**pickle.loads(base64.b64decode(question["knobs"])))
    digests = [decision_digest(policy.decide(from_json(text))) for text in question["snapshots"]]
    json.dump(digests, sys.stdout)


def _module(name: str, file: str) -> Any:
    """A module by its name, or, for a plug-in or a test, from its file."""
    try:
        return importlib.import_module(name)
    except ImportError:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


if __name__ == "__main__":
    sys.exit(main())
