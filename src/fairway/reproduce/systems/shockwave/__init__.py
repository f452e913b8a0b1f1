"""Shockwave: its examples, the runs of its artifact, traces of its generator, and what a forecast changes."""

from fairway.reproduce.case import Case
from fairway.reproduce.data import TACC_JOBS, TACC_THROUGHPUTS, TACC_TRACE
from fairway.reproduce.systems.shockwave.comparison import comparison, forecasts, generated, knobs, sizes
from fairway.reproduce.systems.shockwave.examples import examples
from fairway.reproduce.systems.shockwave.story import story

SYSTEM, PAGE = "Shockwave", "shockwave.md"
_PAPER = "Zheng et al., NSDI'23"
_OWN = f"{_PAPER}; result files of the artifact"
_NEEDS = (TACC_TRACE, TACC_THROUGHPUTS, TACC_JOBS)

CASES = (
    Case(
        "shockwave-example", SYSTEM, "forecasts and the program by hand", f"{_PAPER}, slides", PAGE, examples, 0.2, 0.2
    ),
    Case("shockwave-runs", SYSTEM, "the 120 jobs of the artifact", _OWN, PAGE, comparison, 9.0, 3.0, _NEEDS),
    Case("shockwave-generated", SYSTEM, "traces of the same generator", f"after {_PAPER}", PAGE, generated, 12.0, 2.5),
    Case("shockwave-forecasts", SYSTEM, "what the forecast brings", f"after {_PAPER}", PAGE, forecasts, 20.0, None),
    Case("shockwave-story", SYSTEM, "seven jobs and three forecasts", f"after {_PAPER}", PAGE, story, 10.0, 1.5),
    Case("shockwave-knobs", SYSTEM, "knobs one by one", f"after {_PAPER}", PAGE, knobs, 20.0, None),
    Case("shockwave-sizes", SYSTEM, "64 and 256 GPUs", f"after {_PAPER}", PAGE, sizes, 12.0, None),
)
