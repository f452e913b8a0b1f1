"""Gavel: its examples, the answers of its public policies, the runs of its simulator, and how much load it bears."""

from fairway.reproduce.case import Case
from fairway.reproduce.data import GAVEL_CASES, GAVEL_GANGS, GAVEL_SINGLE, GAVEL_SMALL, GAVEL_THROUGHPUTS
from fairway.reproduce.systems.gavel.examples import examples
from fairway.reproduce.systems.gavel.load import load_of_the_paper, load_sweep
from fairway.reproduce.systems.gavel.policy_cases import policy_cases
from fairway.reproduce.systems.gavel.runs import filling, gangs, packing, single

SYSTEM, PAGE, RUNS = "Gavel", "gavel.md", "gavel_runs.md"
_PAPER = "Narayanan et al., OSDI'20"
_SIMULATED = f"{_PAPER}; measured with the published simulator"
_PRINTED = f"{_PAPER}; printed in the notebooks of the artifact"
_SPEEDS = (GAVEL_THROUGHPUTS,)

CASES = (
    Case("gavel-example", SYSTEM, "plans and rounds by hand", f"{_PAPER}, examples", PAGE, examples, 0.5, 0.5),
    Case(
        "gavel-policies",
        SYSTEM,
        "32 answers of public policies",
        _SIMULATED,
        PAGE,
        policy_cases,
        1.0,
        1.0,
        (GAVEL_CASES,),
    ),
    Case("gavel-single", SYSTEM, "200 jobs of one GPU", _SIMULATED, RUNS, single, 18.0, 2.0, (*_SPEEDS, GAVEL_SINGLE)),
    Case("gavel-gangs", SYSTEM, "200 jobs of 1 to 4 GPUs", _SIMULATED, RUNS, gangs, 7.0, None, (*_SPEEDS, GAVEL_GANGS)),
    Case(
        "gavel-packing",
        SYSTEM,
        "pairs of jobs on a GPU",
        _SIMULATED,
        "gavel_packing.md",
        packing,
        12.0,
        1.5,
        (*_SPEEDS, GAVEL_SMALL),
    ),
    Case(
        "gavel-filling",
        SYSTEM,
        "water filling",
        _SIMULATED,
        "hierarchical.md",
        filling,
        2.0,
        2.0,
        (*_SPEEDS, GAVEL_SMALL),
    ),
    Case("gavel-load", SYSTEM, "jobs that keep coming", _PRINTED, RUNS, load_sweep, 73.0, 8.0, _SPEEDS),
    Case("gavel-load-paper", SYSTEM, "jobs 4,000 to 5,000", _PRINTED, RUNS, load_of_the_paper, 80.0, None, _SPEEDS),
)
