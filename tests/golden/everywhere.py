"""Digests of every policy's decisions, for machines that must agree to the bit.

    python tests/golden/everywhere.py [--compiled] [--full] [--only TEXT]   prints them as JSON
    python tests/golden/everywhere.py --write                               writes digests.json again

A digest covers every start, end and count of a simulated run, in all their bits.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy

from fairway import Result, Workload, simulate
from fairway.core import kernels
from fairway.policies import policies
from fairway.traces import gavel_like, pollux_like, shockwave_like

FILE = Path(__file__).parent / "digests.json"
QUICK = 8
CLUSTER = "v100:1x4,p100:1x4,k80:1x4"
VARIANTS = (
    "max_min_fairness:heterogeneity=agnostic",
    "max_min_fairness:packing=on",
    "finish_time_fairness:packing=on",
    "min_makespan:heterogeneity=agnostic",
    "tiresias:service=4/8/12",
    "optimus:estimates=oracle",
    "hare:clairvoyant=no",
)
TUNED = {
    "pollux with other batches": ("pollux", "t4:3x4"),
    "pollux:search=genetic with other batches": ("pollux:search=genetic", "t4:3x4"),
    "sia with other batches": ("sia", "t4:2x4,v100:1x8"),
}
"""Runs of jobs whose batch size the policy chooses: policy and cluster."""
PUBLISHED = ("max_min_fairness", "max_min_fairness:heterogeneity=agnostic", "min_makespan", "max_throughput", "allox")


SIMPLEX = "packing=on"
"""Programs over pairs are solved by HiGHS, whose releases and builds choose among equally good plans on their own.
Their runs must agree between CPUs on one machine, but not with what is committed."""


def workload(jobs: int) -> Workload:
    """Gangs, users and priorities, and jobs whose batch sizes change: more work than the cluster has room for."""
    plain = gavel_like(
        jobs, seed=5, mean_interarrival_s=60.0, durations="uniform-hours", max_h=3.0, multi_gpu=True, priorities=True
    )
    adaptive = shockwave_like(jobs, seed=6, mean_interarrival_s=60.0, max_h=2.0)
    named = [replace(job, id=f"adaptive-{job.id}") for job in adaptive.jobs]
    return Workload.of(sorted([*plain.jobs, *named], key=lambda job: (job.submitted_s, job.id)))


def tuned_workload(jobs: int) -> Workload:
    """Jobs whose batch size a policy may choose, without the longest ones."""
    drawn = pollux_like(jobs, seed=7, span_h=0.2).jobs
    return Workload.of([job for job in drawn if job.duration_s is not None and job.duration_s < 3600.0])


def runs(only: str = "") -> list[tuple[str, str, str]]:
    """Name, policy and rules of each run."""
    native = [(name, name, "native") for name in (*policies(), *VARIANTS)]
    native += [(name, policy, "native") for name, (policy, _) in TUNED.items()]
    published = [(f"{name} by the rules of gavel", name, "gavel") for name in PUBLISHED]
    return [run for run in [*native, *published] if only in run[0]]


def digest_of(result: Result) -> str:
    """Who held which GPUs from when to when, and when each job ended."""
    held = [(job, start_s.hex(), end_s.hex(), gpus) for job, start_s, end_s, gpus in result.ledger.segments]
    held += [(job, since_s.hex(), batch, ()) for job, since_s, batch in result.ledger.batches]
    ends = [end_s.hex() for end_s in result.finished_s.tolist()]
    return hashlib.sha256(repr((held, ends)).encode()).hexdigest()[:16]


def digests(jobs: int, only: str = "") -> dict[str, str]:
    """The digest of each run."""
    found = {}
    work, tuned = workload(jobs), tuned_workload(2 * jobs)
    for name, policy, rules in runs(only):
        jobs_here, where = (tuned, TUNED[name][1]) if name in TUNED else (work, CLUSTER)
        result = simulate(jobs_here, cluster=where, policy=policy, rules=rules, any_type=True, skip_impossible=True)
        found[name] = digest_of(result)
    return found


OLDEST, NEWEST = "the oldest CPU", "the newest CPU"


def environments() -> dict[str, dict[str, str]]:
    """Other CPUs, as far as this one can stand in for them: variables for a process to start with, by name."""
    numpy_core = importlib.import_module("numpy._core" if numpy.__version__ >= "2" else "numpy.core")
    loops = numpy_core._multiarray_umath
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    kinds = {"Prescott": "sse3", "Nehalem": "sse4_2", "Sandybridge": "avx", "Haswell": "avx2", "SkylakeX": "avx512f"}
    kinds = {name: flag for name, flag in kinds.items() if f" {flag} " in flags.replace("pni", "sse3")}
    found = {f"OpenBLAS for {name}": {"OPENBLAS_CORETYPE": name} for name in kinds}
    simd = " ".join(name for name in loops.__cpu_dispatch__ if loops.__cpu_features__.get(name))
    found["NumPy without SIMD"] = {"NPY_DISABLE_CPU_FEATURES": simd}
    found["libm without FMA"] = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX512F"}
    for threads in ("1", "2"):
        found[f"BLAS threads: {threads}"] = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    oldest, newest = (
        [found[f"OpenBLAS for {name}"] for name in (next(iter(kinds)), list(kinds)[-1])] if kinds else [{}, {}]
    )
    bare = found["NumPy without SIMD"] | found["libm without FMA"]
    return {**found, OLDEST: {**oldest, **bare, **found["BLAS threads: 1"]}, NEWEST: newest | found["BLAS threads: 2"]}


def elsewhere(variables: dict[str, str], *arguments: str, python: str = sys.executable) -> dict[str, str]:
    """The digests of a process that starts with these variables."""
    command = [python, __file__, *arguments]
    answer = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(answer.stderr.strip().splitlines()[-1])
    return dict(json.loads(answer.stdout))


def main() -> int:
    """Print the digests, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", action="store_true", help="use the kernels that Numba compiles")
    parser.add_argument("--full", action="store_true", help="more jobs: minutes instead of seconds")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--write", action="store_true", help="write the file that tests compare with")
    arguments = parser.parse_args()
    if arguments.compiled and not kernels.use_compiled():
        print("Numba is not installed", file=sys.stderr)
        return 2
    found = digests(60 if arguments.full else QUICK, arguments.only)
    if arguments.write:
        kept = {name: digest for name, digest in found.items() if SIMPLEX not in name}
        FILE.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
