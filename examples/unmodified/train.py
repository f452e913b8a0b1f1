"""A training script that knows nothing of Fairway. It is suspended in place and goes on where it was.

    python examples/unmodified/train.py
    fairway submit --preempt suspend -- python examples/unmodified/train.py

Fairway reads its progress off its log, because each line says which step it is and of how many. Its memory stays where
it is while others have the GPU, so that two such jobs must fit beside one another. A script that writes checkpoints by
itself when it gets SIGTERM, and finds them when it starts, needs no import either: submit it with
`--preempt checkpoint`, and have it exit with 75 once it has saved.
"""

from __future__ import annotations

import argparse
import random
import time


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--pause", type=float, default=0.1)
    asked = options.parse_args()

    draw = random.Random(0)
    slope = 0.0
    for step in range(asked.steps):
        x = draw.gauss(0, 1)
        error = slope * x - (3 * x + 0.1 * draw.gauss(0, 1))
        slope -= 0.05 * error * x
        time.sleep(asked.pause)
        if step % 10 == 9:
            print(f"step {step + 1}/{asked.steps}: loss {error * error:.4f}, slope {slope:.6f}", flush=True)
    print(f"done: {slope!r}", flush=True)


if __name__ == "__main__":
    main()
