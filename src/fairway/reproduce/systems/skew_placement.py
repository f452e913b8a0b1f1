"""Placement by skew: what it is worth to keep only those gangs together whose model asks for it."""

from __future__ import annotations

import math

import numpy as np

from fairway.core.hardware import known_gpu
from fairway.core.job import JobSpec, Workload
from fairway.models import builtin
from fairway.models.figures import FIGURES
from fairway.models.tensors import known_tensors
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.simulator.run import simulate

CLUSTER, GPUS, LOAD, JOBS, SEEDS = "v100:16x4", 64, 0.8, 600, 3
PLACEMENTS = ("packed", "skew", "skew:threshold=0", "skew:others=fragments", "spread")
POLICIES = ("fifo", "las", "tiresias")
GANGS, GANG_SHARES = (1, 2, 4, 8), (0.4, 0.2, 0.25, 0.15)
MEDIAN_S, SIGMA = 1800.0, 1.2
EVEN = ("ResNet-18", "ResNet-50", "Transformer", "YOLOv3", "DeepSpeech2")
SKEWED = ("VGG19", "LSTM", "Recommendation")


class _ParameterServers(builtin.BuiltinProfile):
    """The built-in estimates with parameter servers, one per GPU, in place of the ring for gangs that are spread."""

    def __init__(self, gbit_per_s: float) -> None:
        super().__init__()
        self.bytes_per_s = gbit_per_s / 8 * 1e9

    def rate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, *, spread: bool = False) -> float:
        together = super().rate(model, batch_size, gpu_type, gpus)
        if not spread or gpus == 1 or not together:
            return together
        figures, gpu, tensors = FIGURES[model], known_gpu(gpu_type), known_tensors(model)
        assert gpu is not None
        assert tensors is not None
        step = builtin.step_time(figures, batch_size or figures.usual_batch, gpu, gpus)
        sent = 2 * (gpus - 1) / gpus * tensors.total_bytes * tensors.imbalance(gpus)
        sending_s = sent / self.bytes_per_s
        hidden_s = builtin.HIDDEN_SHARE * builtin.BACKWARD_SHARE * step.busy_s
        exchange_s = max(sending_s - hidden_s, (1 - builtin.HIDDEN_SHARE) * sending_s)
        wait_s = builtin.WAIT_PER_DOUBLING * math.log2(gpus) * (step.busy_s + step.overhead_s)
        return gpus / (step.busy_s + step.overhead_s + wait_s + exchange_s)


def mixed_models(jobs: int, seed: int) -> Workload:
    """Jobs whose work is steps; a job takes its drawn duration on GPUs of as few nodes as possible."""
    random, profile = np.random.default_rng(seed), builtin.BuiltinProfile()
    out, now_s = [], 0.0
    gangs = random.choice(GANGS, jobs, p=GANG_SHARES)
    seconds = random.lognormal(math.log(MEDIAN_S), SIGMA, jobs)
    mean_gap_s = float((gangs * seconds).mean()) / (LOAD * GPUS)
    for number, (gang, duration_s) in enumerate(zip(gangs.tolist(), seconds.tolist(), strict=True)):
        models = SKEWED if random.random() < 0.5 else EVEN
        model = models[int(random.integers(len(models)))]
        steps = max(1.0, float(int(duration_s * profile.rate(model, None, "v100", gang))))
        out.append(JobSpec(str(number), round(now_s, 3), gang, steps=steps, model=model))
        now_s += float(random.exponential(mean_gap_s))
    return Workload.of(out, source=f"mixed models, seed {seed}")


def worth(setting: Setting) -> Findings:
    """Three networks, three policies, five placements; quick: one policy, one seed."""
    policies, seeds = (("tiresias",), 1) if setting.quick else (POLICIES, SEEDS)
    networks = {
        "ring, 10 Gbit/s": builtin.BuiltinProfile(),
        "servers, 10 Gbit/s": _ParameterServers(10.0),
        "servers, 100 Gbit/s": _ParameterServers(100.0),
    }
    traces = [mixed_models(JOBS, seed) for seed in range(seeds)]
    rows, better = [], 0
    for network, profile in networks.items():
        for policy in policies:
            means_s = {}
            for placement in PLACEMENTS:
                runs = [
                    simulate(trace, cluster=CLUSTER, policy=policy, placement=placement, profile=profile)
                    for trace in traces
                ]
                means_s[placement] = float(np.mean([run.jct_s.mean() for run in runs]))
            better += means_s["skew"] < means_s["packed"]
            rows.append((network, f"`{policy}`", *(f"{mean_s:,.0f}" for mean_s in means_s.values())))
    what = f"of {len(rows)} settings, those in which `skew` has the shorter mean JCT than `packed`"
    figure = Figure(what, len(rows), better, Yardstick.at_least(), decimals=0, headline=True)
    heads = ("network", "policy", *(f"`{placement}`" for placement in PLACEMENTS))
    return Findings((figure,), {"placements": ResultTable(heads, tuple(rows), 2)})


CASES = (
    Case(
        "skew-placement",
        "Tiresias' placement",
        "waiting for a place together",
        "Gu et al., NSDI'19: only skewed models need consolidation; generated jobs",
        "../placement.md",
        worth,
        18.0,
        3.0,
    ),
)
