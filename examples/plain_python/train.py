"""Logistic regression by stochastic gradient descent in plain Python: a training that Fairway can stop at any step.

    python examples/plain_python/train.py --out result.json
    fairway submit --preempt checkpoint -- python examples/plain_python/train.py --out result.json

It ends with the same weights, to the bit, however often it is stopped and resumed. `--batch` chooses what decides about
the batch size: nobody, the gradient noise scale, Accordion, or the scheduler.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

from fairway import train

SAMPLES, DIMENSIONS, FIRST, LARGEST, RATE = 512, 8, 16, 128, 0.2


def data() -> list[tuple[list[float], float]]:
    """Points of two overlapping classes."""
    draw = random.Random(7)
    truth = [draw.gauss(0, 1) for _ in range(DIMENSIONS)]
    points = [[draw.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(SAMPLES)]
    return [(point, float(draw.random() < chance(truth, point))) for point in points]


def chance(weights: list[float], point: list[float]) -> float:
    """The probability of the second class."""
    return 1 / (1 + math.exp(-sum(w * x for w, x in zip(weights, point, strict=True))))


def gradient(weights: list[float], rows: list[tuple[list[float], float]]) -> tuple[list[float], float]:
    """The mean gradient and the mean loss over some samples."""
    slope, loss = [0.0] * DIMENSIONS, 0.0
    for point, label in rows:
        p = chance(weights, point)
        loss -= math.log(p if label else 1 - p) / len(rows)
        for place, x in enumerate(point):
            slope[place] += (p - label) * x / len(rows)
    return slope, loss


def chosen(name: str, session: train.Session) -> train.Batch:
    """What decides about the batch size."""
    if name == "gns":
        return train.NoiseScaleBatch(FIRST, LARGEST)
    if name == "accordion":
        return train.AccordionBatch(FIRST, LARGEST, interval=2)
    if name == "given":
        return train.GivenBatch(FIRST, session.wanted_batch, largest=LARGEST)
    return train.Batch(FIRST)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, default=Path("result.json"))
    options.add_argument("--epochs", type=int, default=6)
    options.add_argument(
        "--pause", type=float, default=0.01, help="seconds per step, for the computing of a real model"
    )
    options.add_argument("--batch", choices=("fixed", "gns", "accordion", "given"), default="fixed")
    asked = options.parse_args()

    points, state = data(), {"weights": [0.0] * DIMENSIONS, "losses": []}

    def save(path: Path) -> None:
        path.write_text(json.dumps(state))

    def load(path: Path) -> None:
        state.update(json.loads(path.read_text()))

    session = train.session()
    batch = chosen(asked.batch, session)
    for step in session.batches(session.sampler(SAMPLES), batch, asked.epochs, save, load, every=20):
        slope, loss = gradient(state["weights"], [points[row] for row in step.rows])
        batch.observe(slope, step.batch_size)
        rate = RATE * step.rate_factor
        state["weights"] = [w - rate * g for w, g in zip(state["weights"], slope, strict=True)]
        state["losses"].append(loss)
        time.sleep(asked.pause)
        session.report(loss=loss)
    asked.out.write_text(json.dumps({**state, "batch_size": batch.size}))
    print(f"{len(state['losses'])} steps, last loss {state['losses'][-1]:.4f}, batch {batch.size}")


if __name__ == "__main__":
    main()
