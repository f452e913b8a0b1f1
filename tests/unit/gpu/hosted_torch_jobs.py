"""Jobs with torch that tests have hosted by an executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn


class Small:
    """A small training with dropout, which writes down its losses bit by bit."""

    persistent_bytes, ephemeral_bytes = 600, 100

    def __init__(self, seed: str, steps: str, note: str, fault: str = "") -> None:
        torch.manual_seed(int(seed))
        self.steps = int(steps)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self._note, self._fault = Path(note), fault

    def step(self) -> dict[str, Any]:
        """One iteration."""
        inputs, labels = torch.randn(8, 8), torch.randint(4, (8,))
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with self._note.open("a", encoding="ascii") as file:
            file.write(f"{loss.item().hex()}\n")
        return {"loss": loss.detach()}


def small(*arguments: str) -> Small:
    return Small(*arguments)


def large(*arguments: str) -> Small:
    """The same, with the memory that its groups really take."""
    made = Small(*arguments)
    made.persistent_bytes = 15_000
    return made


def crowded(*arguments: str) -> Small:
    """A job that gets no memory when it computes beside others."""
    made = Small(*arguments)
    plain, alone = made.step, Path(arguments[3])

    def step() -> dict[str, Any]:
        if not alone.exists():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return plain()

    made.step = step  # type: ignore[method-assign]
    return made
