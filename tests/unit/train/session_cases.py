"""The environment of a job as the scheduler would make it, and what the job has reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fairway.train import Session, session


def environment(
    folder: Path, *, rank: int = 0, world: int = 1, restart: int = 0, resume: bool = False
) -> dict[str, str]:
    """What one rank of a job finds; its directories are made."""
    (folder / f"attempt-{restart + 1}").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints").mkdir(exist_ok=True)
    return {
        "FAIRWAY_JOB_ID": "1",
        "FAIRWAY_REPORT": str(folder / "reports.jsonl"),
        "FAIRWAY_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "FAIRWAY_RESTART_COUNT": str(restart),
        "FAIRWAY_RESUME": str(int(resume)),
        "FAIRWAY_GRACE_SECONDS": "5",
        "FAIRWAY_RANK": str(rank),
        "FAIRWAY_LOCAL_RANK": str(rank),
        "FAIRWAY_WORLD_SIZE": str(world),
    }


def reports(folder: Path) -> list[dict[str, Any]]:
    """The reports of a job, without their times."""
    path = folder / "reports.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for line in lines:
        assert min(line.pop("time"), line.pop("uptime")) > 0
    return lines


class Attempts:
    """One attempt after another at the same job, each told to stop at a step of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def begin(self, **about: Any) -> Session:
        """The session of the next attempt; the scheduler knows of a checkpoint if one was reported."""
        resume = any("checkpoint" in line for line in reports(self.folder))
        env = environment(self.folder, restart=self.count, resume=resume)
        self.count += 1
        return session(env=env, **about)


class Counter:
    """A training whose whole state is the list of steps that were trained."""

    def __init__(self) -> None:
        self.trained: list[Any] = []

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.trained))

    def load(self, path: Path) -> None:
        self.trained = json.loads(path.read_text())
