"""A training that saves when it gets SIGTERM, ends, and goes on from there, as scripts on clusters do."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from pretended import paced

TOTAL = 400
options = argparse.ArgumentParser()
options.add_argument("--state", type=Path, required=True)
asked = options.parse_args()
stopped: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
begun = json.loads(asked.state.read_text())["step"] if asked.state.exists() else 0
print(f"begins at step {begun}" if not begun else f"goes on at step {begun}")
for step in paced(range(begun + 1, TOTAL + 1)):
    print(f"step {step}/{TOTAL} loss {1 / step:.4f}")
    if stopped:
        asked.state.write_text(json.dumps({"step": step}))
        print(f"saved at step {step}")
        sys.exit(0)
