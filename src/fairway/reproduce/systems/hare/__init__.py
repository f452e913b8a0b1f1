"""Hare: its worked example, and the comparisons of its poster on jobs of our own. The poster's data are not public."""

from fairway.reproduce.case import Case
from fairway.reproduce.systems.hare.poster import completion_times, gpus, jobs, stream
from fairway.reproduce.systems.hare.switching import plans, switching
from fairway.reproduce.systems.hare.toy import example

SYSTEM, PAGE = "Hare", "hare.md"
_PAPER = "Hare, HPDC'22, and its poster"

CASES = (
    Case("hare-example", SYSTEM, "three jobs on three GPUs", f"{_PAPER}, the worked example", PAGE, example, 0.5, 0.5),
    Case("hare-gpus", SYSTEM, "200 jobs on 40 to 160 GPUs", f"{_PAPER}, Fig. 9", PAGE, gpus, 23.0, 5.0),
    Case("hare-jobs", SYSTEM, "100 to 300 jobs on 160 GPUs", f"{_PAPER}, Fig. 10", PAGE, jobs, 16.0, None),
    Case("hare-cdf", SYSTEM, "completion times of 200 jobs", f"{_PAPER}, Fig. 8", PAGE, completion_times, 8.0, None),
    Case("hare-stream", SYSTEM, "jobs that come one after the other", f"after {_PAPER}", PAGE, stream, 18.0, None),
    Case("hare-switching", SYSTEM, "what switches cost", f"after {_PAPER}", PAGE, switching, 25.0, None),
    Case("hare-plans", SYSTEM, "plans and what no schedule is below", f"after {_PAPER}", PAGE, plans, 4.0, 2.5),
)
