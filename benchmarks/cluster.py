"""Many machines with a real Ray, on parts of this host: quick jobs, deaths of parts, lost machines, and the simulator.

    python benchmarks/cluster.py [--only quick kills power fidelity] [--kills 10] [--seed 1] [--suspend]

As root the machines have networks and process ids of their own (see `tests/cluster/machines.py`). `kills` kills each
part of the cluster so often, at random instants beside running jobs, and says how long it took until everything was
adopted. `power` switches a machine off, with fast health checks and with Ray's own. `fidelity` runs the same jobs live
on 3 machines with 4 virtual GPUs each and in the simulator.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "cluster"), str(TESTS / "runtime")]

from cluster_cli import GPUS, check_spells, cluster_cli  # noqa: E402
from machines import FAST_CHECKS, Machines, rss_bytes, wait_until  # noqa: E402
from test_ray_failures import check_all_ran_once, kill_again_and_again, on_machine  # noqa: E402
from test_ray_jobs import quick_jobs  # noqa: E402

from fairway.runtime.processes.ray_site import RaySite  # noqa: E402
from fairway.testing.twin import TwinTerms, forecast, random_jobs, run_live  # noqa: E402

NODES, JOBS, SEED, MEAN_S = 3, 30, 3, 4.0
USUAL_CHECKS = {"initial_delay_ms": 5000, "period_ms": 3000, "timeout_ms": 10000, "failure_threshold": 5}
"""Ray's own settings."""
PARTS = ("daemon", "bridge", "hands", "raylet", "control_store")
TERMS = (("fifo", 0.0), ("tiresias:queues=2/6", 0.0), ("max_min_fairness", 1.0), ("shockwave", 1.0))


@contextmanager
def started(**about: object) -> Iterator[Machines]:
    """Machines with Ray while the block runs."""
    machines = Machines(NODES, ray=about)
    machines.start()
    try:
        yield machines
    finally:
        machines.close()


def quick(options: argparse.Namespace) -> None:
    """From submission to completion of jobs that do nothing; memory."""
    with started() as machines, cluster_cli(machines, "--placement", "spread") as cli:
        times_s = quick_jobs(cli, 100)
        print(f"100 quick jobs: p50 {times_s[50] * 1000:.0f} ms, p99 {times_s[98] * 1000:.0f} ms")
        hands = [pid for one in machines for pid, name in one.workers.items() if "Hands" in name]
        sizes = ", ".join(f"{rss_bytes(pid) / 1e6:.0f}" for pid in hands)
        print(f"memory: bridge {rss_bytes(cli.bridges[0]) / 1e6:.0f} MB, hands {sizes} MB")


def kills(options: argparse.Namespace) -> None:
    """Deaths of every part, in random order."""
    parts = list(PARTS) * options.kills
    random.Random(options.seed).shuffle(parts)
    with started() as machines, cluster_cli(machines, "--placement", "spread") as cli:
        took_s = kill_again_and_again(cli, parts, options.seed)
        check_all_ran_once(cli)
    print(f"{'killed':<16}{'times':>6}{'adopted after: median':>24}{'longest':>10}")
    for part in PARTS:
        times_s = took_s[part]
        print(f"{part:<16}{len(times_s):>6}{statistics.median(times_s):>22.1f} s{max(times_s):>8.1f} s")
    print("no attempt was lost or doubled")


def power(options: argparse.Namespace) -> None:
    """The power of a machine goes off."""
    for name, checks in (("fast checks", FAST_CHECKS), ("Ray's checks", USUAL_CHECKS)):
        told = {f"health_check_{key}": value for key, value in checks.items()}
        with started(**told) as machines, cluster_cli(machines, "--placement", "spread") as cli:
            jobs = [cli.work(100_000) for _ in range(NODES)]
            cli.begun(*jobs)
            # New raylets are not checked at once.
            time.sleep(10.0)
            (there,) = on_machine(cli, 1)
            machines[1].power_off()
            off_s = time.time()
            wait_until(lambda cli=cli, job=there: list(cli.diaries.glob(f"{job}-2-*")), "the job to go on", 120.0)
            again_s = min(spell.from_s for spell in cli.spells() if (spell.job, spell.attempt) == (there, 2))
            cli.enough()
            cli.ended(jobs)
            check_spells(cli)
        print(f"power off, {name}: its job goes on elsewhere after {again_s - off_s:.1f} s")


def fidelity(options: argparse.Namespace) -> None:
    """The same jobs live and simulated.

    A job that is suspended in place goes on only where it is. The simulator lets it go on anywhere, and so is ahead.
    """
    jobs = random_jobs(JOBS, seed=SEED, mean_s=MEAN_S, over_s=2.0 * MEAN_S)
    if not options.suspend:
        jobs = [job._replace(preempt="checkpoint") for job in jobs]
    print(f"{'policy':<22}{'makespan live':>14}{'simulated':>12}{'':>9}{'mean JCT live':>15}{'simulated':>12}")
    with started() as machines:
        os.environ.update({name: text for name, text in machines.env().items() if name.startswith("RAY_")})
        for policy, round_s in TERMS:
            terms = TwinTerms(policy, NODES * GPUS, round_s, nodes=NODES)
            machines.forget_actors()
            folder = Path(tempfile.mkdtemp(dir=machines.shared))
            site = RaySite(machines.gcs_address, folder, str(GPUS), str(folder), log=folder / "ray-bridge.log")
            try:
                live = run_live(jobs, terms, folder, site=site)
            finally:
                site.close()
            told = forecast(live.workload, terms)
            off = told.makespan_s / live.makespan_s - 1, told.mean_jct_s / live.mean_jct_s - 1
            print(
                f"{policy:<22}{live.makespan_s:>12.2f} s{told.makespan_s:>10.2f} s{100 * off[0]:>+7.1f} %"
                f"{live.mean_jct_s:>13.2f} s{told.mean_jct_s:>10.2f} s{100 * off[1]:>+7.1f} %"
                f"{live.preemptions:>6d} preemptions",
                flush=True,
            )


ALL = {"quick": quick, "kills": kills, "power": power, "fidelity": fidelity}


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--suspend", action="store_true", help="fidelity: half of the jobs are suspended in place")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in options.only:
        ALL[name](options)


if __name__ == "__main__":
    main()
