"""pytorch/examples, mnist: lines that count samples, and a test after each epoch."""

from __future__ import annotations

import argparse
from pathlib import Path

from pretended import paced

SAMPLES, BATCH = 6400, 64
options = argparse.ArgumentParser(description="PyTorch MNIST Example")
options.add_argument("--epochs", type=int, default=14, metavar="N")
options.add_argument("--log-interval", type=int, default=10, metavar="N")
options.add_argument("--save-model", action="store_true")
asked = options.parse_args()
for epoch in range(1, asked.epochs + 1):
    for batch in paced(range(0, SAMPLES // BATCH, asked.log_interval)):
        share = 100.0 * batch * BATCH / SAMPLES
        print(f"Train Epoch: {epoch} [{batch * BATCH}/{SAMPLES} ({share:.0f}%)]\tLoss: {2.3 / epoch:.6f}")
    print(f"\nTest set: Average loss: {0.3 / epoch:.4f}, Accuracy: 9000/10000 (90%)\n")
if asked.save_model:
    Path("mnist_cnn.pt").touch()
