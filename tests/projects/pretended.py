"""What the stand-ins share: time that passes as in a training, bars as tqdm draws them, and ranks that meet.

A stand-in trains nothing. It makes the calls of its original about the environment, ranks, terminals and checkpoints,
and writes lines in the form of its original. It writes one line after the other until the test has seen what it looks
for and makes the file that $FINISH names. What is left then takes no time.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

TICK_S = 0.25


def paced(values: Iterable[int]) -> Iterator[int]:
    """The values, one every `TICK_S` until $FINISH is there."""
    finish = Path(os.environ["FINISH"])
    for value in values:
        if not finish.exists():
            time.sleep(TICK_S)
        yield value


def save(path: Path, text: str) -> None:
    """Write a checkpoint. It is there as a whole or not at all, so a job may be stopped at any instant."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.rename(path)


def tqdm(done: int, total: int, before: str = "", after: str = "") -> None:
    """Draw a bar on stderr over the one before, as tqdm does on a terminal and into files."""
    filled = "█" * (10 * done // total)
    rest = f", {after}" if after else ""
    sys.stderr.write(f"\r{before}{100 * done // total:3d}%|{filled:<10}| {done}/{total} [00:10<00:20,  4.00it/s{rest}]")
    sys.stderr.flush()


def meet(rank: int, world: int, address: str, port: int) -> None:
    """Wait until all ranks are there, as a process group does: the first one listens, and the others connect."""
    if rank:
        while True:
            try:
                with socket.create_connection((address, port)) as first:
                    first.recv(1)
                return
            except ConnectionRefusedError:
                time.sleep(0.05)
    with socket.create_server((address, port)) as server:
        others = [server.accept()[0] for _ in range(world - 1)]
        for other in others:
            other.sendall(b"1")
            other.close()


def meet_by_environment() -> tuple[int, int]:
    """The rank and how many there are, from the variables without which `init_process_group` fails."""
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        sys.exit(f"environment variable {missing[0]} expected, but not set")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meet(rank, world, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    return rank, world
