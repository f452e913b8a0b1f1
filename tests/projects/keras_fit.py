"""Keras: bars of colours and backspaces into any file, or a line for each epoch with `--verbose 2`."""

from __future__ import annotations

import argparse
import sys

from pretended import paced

BATCHES = 40
options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=3)
asked = options.parse_args()
for epoch in range(1, asked.epochs + 1):
    print(f"Epoch {epoch}/{asked.epochs}")
    for batch in paced(range(1, BATCHES + 1)):
        done = 20 * batch // BATCHES
        text = f"276ms/step - accuracy: 0.5000 - loss: {0.8 - batch / 1e3:.4f}"
        sys.stdout.write(
            f"\r\x1b[1m{batch:3d}/{BATCHES}\x1b[0m \x1b[32m{'━' * done}\x1b[0m\x1b[37m{'━' * (20 - done)}\x1b[0m "
            f"\x1b[1m16s\x1b[0m {text}"
        )
        sys.stdout.write("\b" * (len(text) + 32) if batch < BATCHES else "\n")
        sys.stdout.flush()
print("done")
