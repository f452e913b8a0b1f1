"""Published files that cases need, and where they are to be had."""

from __future__ import annotations

from fairway.reproduce.case import DataFile

_ADAPTDL, _SIA = "petuum/adaptdl (branch osdi21-artifact)", "siasosp23/artifacts"
POLLUX_WORKLOADS = DataFile("pollux/osdi21/workloads", _ADAPTDL, "simulator/workloads")
POLLUX_LOADS = tuple(
    DataFile(f"pollux/osdi21/workloads-{load}", _ADAPTDL, f"simulator/workloads-{load}")
    for load in ("0.5", "1.5", "2.0")
)
POLLUX_JOBS = DataFile(
    "pollux/osdi21/published_jcts.json",
    _ADAPTDL,
    "simulator/results-*/**/summary.json (seconds by run, workload and job)",
)
POLLUX_PROFILES = DataFile("pollux/profiles", _SIA, "sia-simulator/traces")
SATURN = DataFile("pollux/workloads/saturn", _SIA, "sia-simulator/workloads/saturn")

_SHOCKWAVE = "uw-mad-dash/shockwave"
TACC_TRACE = DataFile(
    "gavel/traces/shockwave_tacc_120jobs.trace",
    _SHOCKWAVE,
    "scheduler/traces/reproduce/120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace",
)
TACC_THROUGHPUTS = DataFile("gavel/tacc_throughputs.json", _SHOCKWAVE, "scheduler/tacc_throughputs.json")
TACC_JOBS = DataFile(
    "gavel/shockwave_published_per_job.json",
    _SHOCKWAVE,
    "scheduler/reproduce/pickles/tacc_32gpus/*.pickle (by run: jct, ftf, makespan, avg_jct)",
)

_GAVEL = "stanford-futuredata/gavel"
_DRAWN = (
    "the output of scheduler/scripts/utils/generate_trace.py"
    " --seed 42 --throughputs_file simulation_throughputs.json -a 1 -b 12 -n 12"
)
GAVEL_SINGLE = DataFile("gavel/traces/gavel_single_200j_lam180_s42.trace", _GAVEL, f"{_DRAWN} --num_jobs 200 -l 180")
GAVEL_GANGS = DataFile("gavel/traces/gavel_multi_200j_lam300_s42.trace", _GAVEL, f"{_DRAWN} --num_jobs 200 -l 300 -m")
GAVEL_SMALL = DataFile("gavel/traces/gavel_single_120j_lam540_s42.trace", _GAVEL, f"{_DRAWN} --num_jobs 120 -l 540")
GAVEL_CASES = DataFile(
    "gavel/policy_cases.json", _GAVEL, "scheduler/policies/*.py (inputs and answers of 32 calls of get_allocation)"
)

TIRESIAS_60_JOBS = DataFile("tiresias/60_job.csv", "SymbioticLab/Tiresias", "simulator/60_job.csv")
MURI_TRACE3 = DataFile("muri/trace3.csv", "Rivendile/Muri", "simulator/trace-data/trace3.csv")
PHILLY = DataFile("philly/philly.csv", "siasosp23/artifacts", "sia-simulator/traces/philly.csv")
GAVEL_THROUGHPUTS = DataFile(
    "gavel/simulation_throughputs.json", "stanford-futuredata/gavel", "scheduler/simulation_throughputs.json"
)
