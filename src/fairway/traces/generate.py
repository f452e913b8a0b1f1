"""Seeded workloads after the published ones: Gavel's and Shockwave's generators, and a log shaped like Philly's.

Everything comes from one numpy `Generator(PCG64(seed))`, so the same parameters give the same jobs on every machine.
Times are whole milliseconds, which also removes the last digit of the few draws for which NumPy asks the C library for
a logarithm. Work is a duration on the gang asked for, so no profile is needed to run it. The first two generators make
steps of it if they are given the speed of a model.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats
from fairway.core.cluster import MAX_GPUS
from fairway.core.errors import InputError
from fairway.core.job import Adaptation, JobSpec, Regime, Workload
from fairway.traces.draws import (
    MAX_JOBS,
    generator_of,
    need_at_least,
    need_whole,
    poisson_arrivals,
    shares_of,
    whole_ms,
)
from fairway.traces.fields import parse_number, shown
from fairway.traces.pollux_like import pollux_like

Rate = Callable[[str, int, int], float]
"""Steps per second of a model, with a batch size per GPU, on a number of GPUs."""

BATCH_SIZES: dict[str, tuple[int, ...]] = {
    "ResNet-18": (16, 32, 64, 128, 256),
    "ResNet-50": (16, 32, 64, 128),
    "Transformer": (16, 32, 64, 128, 256),
    "LM": (5, 10, 20, 40, 80),
    "Recommendation": (512, 1024, 2048, 4096, 8192),
}
"""The job table of Gavel (OSDI'20). Every pair of model and batch size is drawn with the same probability."""
DATASETS = {
    "ResNet-18": "cifar10",
    "ResNet-50": "imagenet",
    "Transformer": "multi30k",
    "LM": "wikitext2",
    "Recommendation": "ml-20m",
}
SINGLE_GPU_MODELS = frozenset(("Recommendation",))
"""Models whose training script in Gavel's table runs only on one GPU."""
BATCH_EXPONENT = {"ResNet-18": 0.20, "ResNet-50": 0.09, "Transformer": 0.03, "LM": 0.34, "Recommendation": 0.03}
"""Samples per second grow as batch size to this power: fitted to the V100 rates that Shockwave published."""

_TABLE = [(model, batch) for model, batches in BATCH_SIZES.items() for batch in batches]
_TABLE_MULTI_GPU = [(model, batch) for model, batch in _TABLE if model not in SINGLE_GPU_MODELS]
NOT_IN_SHOCKWAVE = frozenset((("ResNet-18", 16), ("ResNet-50", 128), ("Transformer", 256)))
"""The entries of that table that Shockwave (NSDI'23) leaves out."""
_TABLE_SHOCKWAVE = [kind for kind in _TABLE if kind not in NOT_IN_SHOCKWAVE]
_PHILLY_MIX = {1: 0.93, 2: 0.02, 4: 0.02, 8: 0.02, 16: 0.003, 32: 0.001, 64: 0.0002, 128: 0.0001}
_PHILLY_MEDIAN_S, _PHILLY_P99_S = 1100.0, 250_000.0
_Z99 = 2.3263478740408408
_DAY_S = 86_400.0
_DIURNAL_SWING = 0.5
_COSINE_TERMS = tuple((-1.0 if n % 4 else 1.0) / math.factorial(n) for n in range(24, 0, -2))


def gavel_like(
    jobs: int = 100,
    seed: int = 0,
    mean_interarrival_s: float = 360.0,
    durations: str = "log-uniform",
    multi_gpu: bool = False,
    priorities: bool = False,
    min_h: float = 1.0,
    max_h: float = 12.0,
    rate: Rate | None = None,
) -> Workload:
    """Jobs as Gavel's simulator draws them, with exponential gaps between arrivals.

    Durations are `log-uniform` (60 s times 10^U(1.5, 3) for four jobs in five, else times 10^U(3, 4)) or
    `uniform-hours` (one of twelve values from `min_h` to `max_h`). With `multi_gpu` a job asks for 1, 2, 4 or 8 GPUs
    with probability .70, .10, .15, .05; with `priorities` one job in five has weight 5. A `rate` turns the durations
    into steps.
    """
    rng = generator_of(jobs, seed)
    need_at_least(mean_interarrival_s, 0, "mean_interarrival_s")
    if durations == "log-uniform":
        # Not `uniform`: on some CPUs it multiplies and adds in one step.
        power = np.where(rng.random(jobs) < 0.8, 1.5 + 1.5 * rng.random(jobs), 3.0 + rng.random(jobs))
        seconds = 60.0 * portable.exp(power * portable.log(10.0))
    elif durations == "uniform-hours":
        _check_hours(min_h, max_h)
        seconds = 3600.0 * rng.choice(np.linspace(min_h, max_h, 12), jobs)
    else:
        raise InputError(f"durations {shown(durations)} is not one of log-uniform, uniform-hours")
    gpus = rng.choice([1, 2, 4, 8], jobs, p=[0.70, 0.10, 0.15, 0.05]) if multi_gpu else np.ones(jobs, dtype=np.int64)
    weights = np.where(rng.random(jobs) < 0.2, 5.0, 1.0) if priorities else np.ones(jobs)
    arrivals = poisson_arrivals(rng, jobs, mean_interarrival_s)
    out = []
    for index in range(jobs):
        table = _TABLE if gpus[index] == 1 else _TABLE_MULTI_GPU
        model, batch = table[int(rng.integers(len(table)))]
        work = _work(model, batch, int(gpus[index]), whole_ms(seconds[index]), rate)
        out.append(
            JobSpec(
                id=str(index),
                submitted_s=whole_ms(arrivals[index]),
                gpus=int(gpus[index]),
                model=model,
                dataset=DATASETS[model],
                batch_size=batch,
                weight=float(weights[index]),
                **work,
            )
        )
    return Workload.of(out, source=f"gavel-like seed {seed}", format="generated")


def shockwave_like(
    jobs: int = 120,
    seed: int = 0,
    mean_interarrival_s: float = 40.0,
    min_h: float = 0.2,
    max_h: float = 5.0,
    static: float = 0.0,
    accordion: float = 0.5,
    gns: float = 0.5,
    scale_mix: tuple[float, ...] = (0.6, 0.3, 0.09, 0.01),
    rate: Rate | None = None,
) -> Workload:
    """Jobs after Shockwave (NSDI'23), many of which change their batch size while they train.

    Durations are drawn from 100 even steps between `min_h` and `max_h`: 72 % from the lowest fifth, 20 % from the next
    three tenths, 5 % from the next four, 3 % from the top tenth. `static`, `accordion` and `gns` are the shares of the
    three modes; accordion needs a run of 1,000 s, or the job is static. A duration is that at the first batch size;
    regimes say how much faster the later ones go (see `regimes_of`). A `rate` turns durations into steps, whose regimes
    then follow from the job's model and mode.
    """
    rng = generator_of(jobs, seed)
    need_at_least(mean_interarrival_s, 0, "mean_interarrival_s")
    _check_hours(min_h, max_h)
    modes = shares_of({"static": static, "accordion": accordion, "gns": gns})
    scales = shares_of({f"scale_mix[{i}]": share for i, share in enumerate(scale_mix)}, width=4)
    steps = np.linspace(min_h * 3600, max_h * 3600, 100)
    arrivals = poisson_arrivals(rng, jobs, mean_interarrival_s)
    names: tuple[Adaptation, ...] = ("none", "accordion", "gns")
    table = [(model, batch) for model, batch in _TABLE_SHOCKWAVE if rate is None or rate(model, batch, 1) > 0]
    if not table:
        raise InputError("no model of Shockwave's table has a speed here")
    out = []
    for index in range(jobs):
        model, batch = table[int(rng.integers(len(table)))]
        low, high = ((0, 20), (20, 50), (50, 90), (90, 100))[int(rng.choice(4, p=[0.72, 0.20, 0.05, 0.03]))]
        duration_s = whole_ms(steps[int(rng.integers(low, high))])
        gpus = 2 ** int(rng.choice(4, p=scales))
        mode = names[int(rng.choice(3, p=modes))]
        if mode == "accordion" and duration_s < 1000:
            mode = "none"
        gpus = 1 if model in SINGLE_GPU_MODELS else gpus
        out.append(
            JobSpec(
                id=str(index),
                submitted_s=whole_ms(arrivals[index]),
                gpus=gpus,
                model=model,
                dataset=DATASETS[model],
                batch_size=batch,
                adaptation=mode,
                regimes=() if rate else regimes_of(mode, model, batch),
                **_work(model, batch, gpus, duration_s, rate),
            )
        )
    return Workload.of(out, source=f"shockwave-like seed {seed}", format="generated")


def regimes_of(mode: Adaptation, model: str, batch: int) -> tuple[Regime, ...]:
    """The batch sizes of a job over its work, and their speed relative to the first.

    Accordion keeps the first batch size for the critical first 30 % and then takes the model's largest; the
    Transformer never changes, as in Shockwave. GNS doubles at even fractions of the work up to the largest.
    """
    largest = BATCH_SIZES[model][-1]
    if mode == "accordion" and model != "Transformer" and batch < largest:
        sizes, ends = [batch, largest], [0.3, 1.0]
    elif mode == "gns" and batch < largest:
        sizes = [batch * 2**k for k in range((largest // batch).bit_length())]
        ends = [(k + 1) / len(sizes) for k in range(len(sizes))]
    else:
        return ()
    speeds = [round(portable.power(size / batch, BATCH_EXPONENT[model]), 3) for size in sizes]
    return tuple(Regime(end, size, speed) for end, size, speed in zip(ends, sizes, speeds, strict=True))


def philly_like(
    jobs: int = 1000,
    seed: int = 0,
    load: float = 0.8,
    gpus: int = 64,
    users: int = 50,
    longest_h: float = 1440.0,
) -> Workload:
    """A log shaped like Microsoft's Philly: mostly small short jobs, a heavy tail, few users with most of the jobs.

    Durations are log-normal with a median of 1,100 s and a 99th percentile of 250,000 s, cut at `longest_h` hours (60
    days); 93 % of the jobs ask for one GPU. Arrivals are Poisson with a daily swing of a half, over a span in which the
    jobs ask for `load` times what `gpus` GPUs can give. No job asks for more than `gpus`. Among a few hundred jobs the
    longest one can be most of the work: a smaller `longest_h` makes short traces that keep a cluster busy.
    """
    rng = generator_of(jobs, seed)
    need_at_least(load, 1e-6, "load")
    need_whole(gpus, 1, MAX_GPUS, "gpus")
    need_whole(users, 1, MAX_JOBS, "users")
    need_at_least(longest_h, 0.1, "longest_h")
    seconds = _philly_durations(rng, jobs)
    while (too_long := seconds > longest_h * 3600.0).any():
        seconds[too_long] = _philly_durations(rng, int(too_long.sum()))
    seconds = np.maximum(np.round(seconds, 3), 0.001)
    sizes = np.array([size for size in _PHILLY_MIX if size <= gpus])
    shares = np.array([_PHILLY_MIX[int(size)] for size in sizes])
    demand = rng.choice(sizes, jobs, p=shares / shares.sum())
    popularity = 1.0 / np.arange(1, users + 1)
    owners = rng.choice(users, jobs, p=popularity / popularity.sum())
    span_s = float((seconds * demand).sum()) / (load * gpus)
    arrivals = _diurnal_arrivals(rng, jobs, span_s)
    digits = len(str(users - 1))
    out = [
        JobSpec(
            id=str(index),
            submitted_s=whole_ms(arrivals[index]),
            gpus=int(demand[index]),
            duration_s=float(seconds[index]),
            user=f"user-{owners[index]:0{digits}}",
        )
        for index in range(jobs)
    ]
    return Workload.of(out, source=f"philly-like seed {seed}", format="generated")


def _philly_durations(rng: np.random.Generator, jobs: int) -> Floats:
    sigma = portable.log(_PHILLY_P99_S / _PHILLY_MEDIAN_S) / _Z99
    return portable.exp(portable.log(_PHILLY_MEDIAN_S) + sigma * rng.standard_normal(jobs))


GENERATORS: dict[str, Callable[..., Workload]] = {
    "gavel-like": gavel_like,
    "shockwave-like": shockwave_like,
    "philly-like": philly_like,
    "pollux-like": pollux_like,
}
"""The generators by name, as the command line offers them."""


def generate(name: str, *, rate: Rate | None = None, **options: Any) -> Workload:
    """Run a generator by name. Options may be texts from a command line; they are converted to the parameter's type."""
    if name not in GENERATORS:
        raise InputError(f"unknown generator {shown(name)}; known: {', '.join(GENERATORS)}")
    if rate is not None and "rate" not in inspect.signature(GENERATORS[name]).parameters:
        raise InputError(f"{name} has no models, so there are no steps to count; it takes no profile")
    known = parameters(name)
    given = {}
    for key, value in options.items():
        if key not in known:
            raise InputError(f"{name} has no parameter {shown(key)}; known: {', '.join(known)}")
        given[key] = _read_option(key, value, known[key][0]) if isinstance(value, str) else value
    if rate is not None:
        given["rate"] = rate
    return GENERATORS[name](**given)


def parameters(name: str) -> dict[str, tuple[Any, Any]]:
    """The type and the default of every parameter of a generator that can be given as text."""
    function = GENERATORS[name]
    hints = get_type_hints(function)
    defaults = inspect.signature(function).parameters
    return {key: (hints[key], defaults[key].default) for key in defaults if key != "rate"}


def _read_option(key: str, text: str, hint: Any) -> Any:
    if hint is str:
        return text
    if hint is bool:
        known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in known:
            raise InputError(f"{key} {shown(text)} is not yes or no")
        return known[text.lower()]
    numbers = [parse_number(part.strip()) for part in text.split(",")]
    if None in numbers or (hint in (int, float) and len(numbers) > 1):
        wanted = "a number" if hint in (int, float) else "a list of numbers"
        raise InputError(f"{key} {shown(text)} is not {wanted}")
    if hint is int:
        value = numbers[0] or 0.0
        return int(value) if value == int(value) else value
    return numbers[0] if hint is float else tuple(numbers)


def _check_hours(min_h: float, max_h: float) -> None:
    need_at_least(min_h, 0, "min_h")
    need_at_least(max_h, min_h, "max_h")


def _diurnal_arrivals(rng: np.random.Generator, jobs: int, span_s: float) -> np.ndarray:
    """Arrivals from 0 to `span_s`, busiest a quarter of a day in. A Poisson process with a known number of points is a
    sorted sample from its rate, drawn here through the inverse of the rate's integral.
    """
    places = np.sort(rng.random(jobs))
    if jobs == 1 or places[-1] == places[0]:
        return np.zeros(jobs)
    places = (places - places[0]) / (places[-1] - places[0])
    grid_s = np.linspace(0.0, span_s, max(1000, min(1_000_000, int(span_s / 600))))
    turn = 2 * math.pi / _DAY_S
    mass = grid_s + _DIURNAL_SWING / turn * (1 - _cosine(grid_s / _DAY_S))
    return portable.interpolates(places * mass[-1], mass, grid_s)


def _cosine(turns: Floats) -> Floats:
    """The cosine of an angle in full turns, by its series on a quarter of one."""
    part = np.abs(turns - np.rint(turns))
    angle = 2.0 * math.pi * np.minimum(part, 0.5 - part)
    square = angle * angle
    value = np.zeros_like(square)
    for term in _COSINE_TERMS:
        value = (value + term) * square
    return np.where(part > 0.25, -1.0, 1.0) * (1.0 + value)


def _work(model: str, batch: int, gpus: int, duration_s: float, rate: Rate | None) -> dict[str, Any]:
    if rate is None:
        return {"duration_s": duration_s}
    steps_per_s = float(rate(model, batch, gpus))
    if not (math.isfinite(steps_per_s) and steps_per_s > 0):
        raise InputError(f"the rate of {model} (batch size {batch}) on {gpus} GPUs is {steps_per_s}, not positive")
    return {"steps": max(1.0, float(int(duration_s * steps_per_s)))}
