"""The jobs of `gpu_end_to_end.py`: one training, as a program of its own and as a function for an executor."""

from __future__ import annotations

import sys
import time
from typing import Any


class Training:
    """A training of `steps` steps of about the same length, on the GPU if there is one with torch, else by waiting."""

    def __init__(self, steps: int, *, waits: bool) -> None:
        self.steps = steps
        self._waits = waits
        if waits:
            return
        import torch

        self._torch = torch
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> dict[str, Any]:
        """One step: 20 passes, so that it takes tens of milliseconds."""
        if self._waits:
            time.sleep(0.02)
            return {}
        loss = self._torch.zeros(())
        for _ in range(20):
            inputs = self._torch.randn(1024, 4096, device="cuda")
            loss = (self.model(inputs) - inputs).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self._torch.cuda.synchronize()
        return {"loss": loss.detach()}


def make_job(steps: str, waits: str = "no") -> Training:
    """For an executor."""
    return Training(int(steps), waits=waits == "yes")


def main() -> None:
    """As a program: `python gpu_end_to_end_jobs.py STEPS [waits]`."""
    training = Training(int(sys.argv[1]), waits="waits" in sys.argv)
    for _ in range(training.steps):
        training.step()


if __name__ == "__main__":
    main()
