"""What the scheduler passes to a process of its job, by environment variables; outside Fairway, nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Context:
    """Where this process is. `scheduled` is False outside Fairway. Ranks are those of torchrun, if it started this.

    `attempt` is the directory of this start of the job, which all its ranks share. `node` is where the scheduler leaves
    word for the ranks of this node, and they for it: the same one, unless the job has several nodes. `resume` says that
    the scheduler knows of a checkpoint of this job. `batch_size` is what the scheduler wants the job to train with.
    """

    scheduled: bool = False
    job_id: str = ""
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    restart_count: int = 0
    report: Path | None = None
    checkpoints: Path | None = None
    attempt: Path | None = None
    node: Path | None = None
    resume: bool = False
    grace_s: float = 60.0
    reason: str = ""
    batch_size: int | None = None

    @staticmethod
    def from_environment(env: Mapping[str, str] | None = None) -> Context:
        """Read the variables of this process, or the given ones. A value that makes no sense counts as not given."""
        env = os.environ if env is None else env
        # A launcher inside the job, such as torchrun, knows better than the scheduler which rank a process is.
        whose = "" if "RANK" in env and "WORLD_SIZE" in env else "FAIRWAY_"
        world_size = max(_whole(env, f"{whose}WORLD_SIZE", 1), 1)
        rank, local_rank = _whole(env, f"{whose}RANK", 0), _whole(env, f"{whose}LOCAL_RANK", 0)
        rank = rank if rank < world_size else 0
        if not env.get("FAIRWAY_REPORT"):
            return Context(rank=rank, local_rank=local_rank, world_size=world_size)
        report = Path(env["FAIRWAY_REPORT"])
        restart_count = _whole(env, "FAIRWAY_RESTART_COUNT", 0)
        attempt = report.parent / f"attempt-{restart_count + 1}"
        return Context(
            scheduled=True,
            job_id=env.get("FAIRWAY_JOB_ID", ""),
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            restart_count=restart_count,
            report=report,
            checkpoints=Path(env["FAIRWAY_CHECKPOINT_DIR"]) if env.get("FAIRWAY_CHECKPOINT_DIR") else None,
            attempt=_writable(attempt),
            node=_writable(Path(env.get("FAIRWAY_NODE_DIR") or attempt)),
            resume=env.get("FAIRWAY_RESUME") == "1",
            grace_s=_seconds(env.get("FAIRWAY_GRACE_SECONDS", ""), 60.0),
            reason=env.get("FAIRWAY_REASON", ""),
            batch_size=_whole(env, "FAIRWAY_BATCH_SIZE", 0) or None,
        )


def _writable(folder: Path) -> Path | None:
    """Where ranks may write in a directory of the scheduler, if it is there."""
    return next((one for one in (folder / "shared", folder) if one.is_dir()), None)


def _whole(env: Mapping[str, str], name: str, otherwise: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 19 else otherwise


def _seconds(text: str, otherwise: float) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return otherwise
    return seconds if seconds >= 0 else otherwise
