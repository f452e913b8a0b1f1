"""Short runs in which every compiled loop is called: Numba keeps the machine code on disk, and later runs start fast.

python -m fairway.testing.warm_up
"""

from __future__ import annotations

from fairway.core.job import Workload
from fairway.core.kernels import use_compiled
from fairway.simulator.run import simulate
from fairway.testing.builders import job

POLICIES = (
    "fifo",
    "hare",
    "las:levels=10/100",
    "srtf",
    *(f"tiresias:gittins={how}" for how in ("off", "within", "exact")),
)


def warm_up() -> bool:
    """Call all loops once, if Numba is installed; says whether it is."""
    if not use_compiled():
        return False
    jobs = [job(f"j{number}", 1 + number % 3, 40.0 + 9.0 * number, 7.0 * number) for number in range(40)]
    for policy in POLICIES:
        simulate(Workload(tuple(jobs)), cluster="v100:2x4", policy=policy)
    return True


if __name__ == "__main__":
    warm_up()
