"""AlloX: jobs to interchangeable GPU types by minimum-cost matching (Le et al., EuroSys'20).

Which job waits for a fast GPU, and which takes a slow one now? A job that is the k-th from the end on its GPU delays
k jobs by its run time there, so the least sum of completion times is a cheapest matching of jobs and places in line.
The matching is computed again whenever a job comes or ends. The job that is first in line on an idle GPU starts and is
not stopped again. Only the jobs of the users with the least progress take part, so that short jobs of some users do not
shut out the others.
"""

from __future__ import annotations

from fairway.policies.allox.policy import AlloX

__all__ = ["AlloX"]
