"""`python -m tests.golden.update` writes the golden runs again and prints what changed.

Do so only for a change of behaviour that is meant, and put the printed table into the change's description.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from runs import FILE, golden_runs


def main() -> None:
    old = json.loads(FILE.read_text()) if FILE.exists() else {}
    new = golden_runs()
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            print(f"{key}\n  was {old.get(key)}\n  is  {new.get(key)}")
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in new.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(new)} runs in {FILE.name}")


if __name__ == "__main__":
    main()
