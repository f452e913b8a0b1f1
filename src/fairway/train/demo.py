"""A training of a few seconds in plain Python, for demonstrations: `python -m fairway.train.demo STEPS STEP_S`.

It fits a line through noisy points by stochastic gradient descent. Each step also sleeps, to stand for the computation
of a model that is worth a GPU.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from fairway import train

RATE, BATCH = 0.05, 8


def main() -> None:
    """Train, report the loss, and stop and resume as the scheduler wants."""
    steps, step_s = int(sys.argv[1]), float(sys.argv[2])
    model = {"slope": 0.0, "offset": 0.0}

    def save(path: Path) -> None:
        path.write_text(json.dumps(model), encoding="utf-8")

    def load(path: Path) -> None:
        model.update(json.loads(path.read_text(encoding="utf-8")))

    session = train.session(steps=steps, batch_size=BATCH)
    for step in session.steps(save, load):
        began_s = time.monotonic()
        loss = _train(model, random.Random(step))
        session.report(loss=loss)
        time.sleep(max(step_s - (time.monotonic() - began_s), 0.0))
    print(f"y = {model['slope']:.2f} x + {model['offset']:.2f} after {steps} steps")


def _train(model: dict[str, float], draw: random.Random) -> float:
    """One step on a batch of points near y = 2 x + 1; returns the loss before it."""
    loss, slope, offset = 0.0, 0.0, 0.0
    for _ in range(BATCH):
        x = draw.uniform(-1.0, 1.0)
        error = model["slope"] * x + model["offset"] - (2.0 * x + 1.0 + draw.gauss(0.0, 0.1))
        loss += error * error / BATCH
        slope += 2.0 * error * x / BATCH
        offset += 2.0 * error / BATCH
    model["slope"] -= RATE * slope
    model["offset"] -= RATE * offset
    return loss


if __name__ == "__main__":
    main()
