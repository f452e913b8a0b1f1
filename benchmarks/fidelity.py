"""Live and simulated, side by side: the same jobs as real processes and in the simulator, from their own trace.

python benchmarks/fidelity.py [--jobs 30] [--gpus 8] [--mean 4] [--seed 1] [--reports] [--policy NAME ...] [--within 5]

The simulated figures are means over eight runs in which run times vary by half a per cent, as those of processes do,
with the standard deviation behind ±. Both worlds know the run times that owners state. With `--reports` the live jobs
also report their steps, and policies decide by what is measured. With `--within` it ends with exit code 1 if a figure
is off by more per cent in three runs: other work on the machine may disturb one of them.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

from fairway.testing.twin import LiveRun, TwinForecast, TwinTerms, forecast, random_jobs, run_live

ROUND_S = 1.0
POLICIES = ("fifo", "tiresias:queues=4/12", "max_min_fairness", "shockwave")
BY_ROUNDS = ("max_min_fairness", "shockwave")
TRIES = 3


def main() -> None:
    """Run every policy twice and print both sides."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--mean", type=float, default=4.0, help="mean run time of a job in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reports", action="store_true", help="let live jobs report their steps")
    parser.add_argument("--policy", action="append")
    parser.add_argument("--within", type=float, default=math.inf, help="how far off a figure may be, in per cent")
    options = parser.parse_args()
    jobs = random_jobs(options.jobs, options.seed, mean_s=options.mean, over_s=2.0 * options.mean)
    print(f"{len(jobs)} jobs of about {options.mean:g} s on {options.gpus} virtual GPUs; rounds of {ROUND_S:g} s")
    print(
        f"{'policy':<22}{'makespan live':>14}{'simulated':>18}{'':>8}{'mean JCT live':>15}{'simulated':>18}{'':>8}",
        end="",
    )
    print(f"{'preemptions':>13}{'start':>9}{'again':>8}")
    off = []
    for policy in options.policy or POLICIES:
        by_rounds = policy.partition(":")[0] in BY_ROUNDS
        terms = TwinTerms(policy, options.gpus, ROUND_S if by_rounds else 0.0, report_every=5 * options.reports)
        for _ in range(TRIES):
            with tempfile.TemporaryDirectory(prefix="fairway-fidelity-") as folder:
                live = run_live(jobs, terms, Path(folder))
            simulated = forecast(live.workload, terms)
            print(_row(policy, live, simulated), flush=True)
            if _off(live, simulated) <= options.within / 100:
                break
        else:
            off.append(policy)
    if off:
        sys.exit(f"more than {options.within:g} % off in {TRIES} runs: {', '.join(off)}")


def _off(live: LiveRun, simulated: TwinForecast) -> float:
    """By what part of the live figure a simulated one is off, at most."""
    makespan, jct = simulated.makespan_s / live.makespan_s, simulated.mean_jct_s / live.mean_jct_s
    return max(abs(makespan - 1.0), abs(jct - 1.0))


def _row(policy: str, live: LiveRun, simulated: TwinForecast) -> str:
    makespan_s, jct_s = simulated.makespan_s, simulated.mean_jct_s
    return (
        f"{policy:<22}{live.makespan_s:>12.2f} s{makespan_s:>9.2f} ±{simulated.makespan_spread_s:>5.2f} s"
        f"{100 * (makespan_s / live.makespan_s - 1):>+6.1f} %"
        f"{live.mean_jct_s:>13.2f} s{jct_s:>9.2f} ±{simulated.jct_spread_s:>5.2f} s"
        f"{100 * (jct_s / live.mean_jct_s - 1):>+6.1f} %"
        f"{live.preemptions:>6d} /{simulated.preemptions:>4.0f}"
        f"{1000 * live.costs.start_s:>7.0f} ms{1000 * live.costs.restart_s:>6.0f} ms"
    )


if __name__ == "__main__":
    main()
