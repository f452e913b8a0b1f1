"""AntMan: its controller, and what guests bring and cost on a nearly full cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairway.core.job import JobSpec, Workload
from fairway.models.profile import Profile, load_profile
from fairway.policies.antman.control import aimd
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.data import GAVEL_THROUGHPUTS
from fairway.reproduce.watching import ProgressCourse
from fairway.simulator.rules import NATIVE
from fairway.simulator.run import simulate

SYSTEM, PAGE, PAPER = "AntMan", "antman.md", "Xiao et al., OSDI'20"
CLUSTER, JOBS, SEEDS = "v100:8x4", 100, 3
MODELS = {"ResNet-18": 64, "ResNet-50": 32, "LM": 20, "Transformer": 64, "Recommendation": 2048}
POLICIES = ("antman", "antman:share=off", "backfill")
SLOWDOWN, WORST, FIRST_JCT, SPARE_JCT, SPARE_WORK, USEFUL = range(6)


def example(_: Setting) -> Findings:
    """The throttle of a guest while its host takes 230, 215, 205 and 204 ms in place of 200."""
    share, figures = 1.0, []
    for step_ms, wanted in ((230, 0.5), (215, 0.25), (205, 0.35), (204, 0.45)):
        share = aimd(share, step_ms / 200)
        figures.append(Figure(f"throttle after a step of {step_ms} ms", wanted, share, Yardstick.equal(6), decimals=2))
    return Findings(tuple(figures))


def classes(jobs: int, seed: int, profile: Profile) -> Workload:
    """Guaranteed gangs of one to four GPUs that keep the cluster fairly full, and small opportunistic jobs."""
    random = np.random.default_rng([seed, 12])
    at_s = np.round(np.cumsum(random.exponential(240.0, jobs)), 3)
    specs = []
    for i in range(jobs):
        guest = i % 3 == 2
        gpus = 1 if guest else int(random.choice([1, 1, 2, 4]))
        model = str(random.choice(sorted(MODELS)))
        if model == "Recommendation":
            gpus = 1
        batch_size = MODELS[model]
        steps = round(float(random.uniform(3600.0, 5 * 3600.0)) * profile.rate(model, batch_size, "v100", gpus))
        name, priority = ("spare", -1) if guest else ("first", 0)
        about = JobSpec(
            f"{name}-{i}", at_s[i], gpus, steps=steps, model=model, batch_size=batch_size, priority=priority
        )
        specs.append(about)
    return Workload.of(specs, source=f"classes, seed {seed}")


def _measured(workload: Workload, policy: str, profile: Profile, seed: int) -> list[float]:
    """How much longer guaranteed jobs hold GPUs (mean, worst), JCTs, work of the others, useful share of the GPUs.

    Gangs over several nodes are not slower here, so that only sharing slows jobs down. `backfill` knows no classes.
    """
    course = ProgressCourse(len(workload))
    rules = replace(NATIVE, spread_matters=False)
    result = simulate(
        workload,
        cluster=CLUSTER,
        policy=policy,
        profile=profile,
        rules=rules,
        seed=seed,
        observer=course,
        priorities=policy != "backfill",
    )
    ledger, specs = result.ledger, workload.jobs
    first = np.array([spec.priority >= 0 for spec in specs])
    end_s, held_s, alone_s = ledger.finished_s, ledger.held_s, ledger.exclusive_s
    last_s = max(spec.submitted_s for spec in specs if spec.priority >= 0)
    total = np.array([spec.steps or 0.0 for spec in specs])
    done = np.array([min(float(course.at(i, np.array([last_s]))[0]), total[i]) for i in range(len(specs))])
    done[end_s <= last_s] = total[end_s <= last_s]
    gpu_h = done / total * alone_s * np.array([spec.gpus for spec in specs]) / 3600.0
    jct_s = end_s - np.array([spec.submitted_s for spec in specs])
    return [
        float((held_s[first].sum() / alone_s[first].sum()) - 1.0),
        float((held_s[first] / alone_s[first]).max() - 1.0),
        float(jct_s[first].mean()),
        float(jct_s[~first].mean()),
        float(gpu_h[~first].sum()),
        float(gpu_h.sum() / (result.cluster.gpu_count * last_s / 3600.0)),
    ]


def _guests(profile: Profile, seeds: int) -> Findings:
    runs = {
        policy: np.array([_measured(classes(JOBS, seed, profile), policy, profile, seed) for seed in range(seeds)])
        for policy in POLICIES
    }
    found = {policy: values.mean(axis=0).tolist() for policy, values in runs.items()}
    rows = tuple(
        (
            f"`{policy}`" + (", no classes" if policy == "backfill" else ""),
            f"{seen[SPARE_WORK]:.1f}",
            f"{100 * seen[USEFUL]:.1f} %",
            f"{100 * seen[SLOWDOWN]:.1f} % ({100 * runs[policy][:, WORST].max():.1f} %)",
            f"{seen[FIRST_JCT]:,.0f}",
            f"{seen[SPARE_JCT]:,.0f}",
        )
        for policy, seen in found.items()
    )
    heads = (
        "policy",
        "spare work, GPU-h",
        "useful",
        "slowdown, mean (worst)",
        "JCT of guaranteed jobs, s",
        "of spare jobs, s",
    )
    ours, off = found["antman"], found["antman:share=off"]
    why = "the GPUs were nearly full before, and interference of these models leaves a guest little within the bound"
    figures = (
        Figure(
            "worst slowdown of a guaranteed job",
            5.0,
            100 * runs["antman"][:, WORST].max(),
            Yardstick.at_most(),
            "%",
            2,
            headline=True,
        ),
        Figure(
            "more useful work of the GPUs by guests",
            34.0,
            100 * (ours[USEFUL] / off[USEFUL] - 1),
            Yardstick.within(0.1, good="higher"),
            "%",
            why=why,
            headline=True,
        ),
    )
    return Findings(figures, {"guests": ResultTable(heads, rows)})


def estimated(setting: Setting) -> Findings:
    """Pair speeds as the built-in profile estimates them."""
    return _guests(load_profile(None), 1 if setting.quick else SEEDS)


def measured(setting: Setting) -> Findings:
    """Pair speeds as Gavel's authors measured them."""
    return _guests(load_profile(str(setting.file(GAVEL_THROUGHPUTS))), 1 if setting.quick else SEEDS)


SOURCE = f"{PAPER}, evaluation: compute-unit utilisation and the bound on interference; generated jobs"
CASES = (
    Case("antman-example", SYSTEM, "the controller by hand", f"{PAPER}, derived", PAGE, example, 0.1, 0.1),
    Case("antman-estimates", SYSTEM, "guests, by estimates of interference", SOURCE, PAGE, estimated, 3.0, 1.0),
    Case(
        "antman-measurements",
        SYSTEM,
        "guests, by Gavel's measurements",
        SOURCE,
        PAGE,
        measured,
        3.0,
        1.0,
        (GAVEL_THROUGHPUTS,),
    ),
)
