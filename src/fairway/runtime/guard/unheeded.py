"""What a job asks for and the policy in force takes no notice of: its owner is told when the job is submitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairway.core.policy import Policy, heeded_by
from fairway.policies.registry import policies
from fairway.runtime.jobs.request import JobRequest


def unheeded(requests: Sequence[JobRequest], policy: Policy) -> list[str]:
    """One line for each term that jobs have and the policy does not heed."""
    heeds = heeded_by(policy)
    if heeds is None:
        return []
    # The tasks of an array ask for the same.
    alike = {(one.gpus, one.gpus_min, one.gpus_max, one.weight, one.deadline_s): one for one in requests}
    return list(dict.fromkeys(line for one in alike.values() for line in _lines(one, heeds, policy.name)))


def _lines(request: JobRequest, heeds: frozenset[str], name: str) -> Iterator[str]:
    if request.elastic and "range" not in heeds:
        gpus = f"{request.gpus} GPU{'s' * (request.gpus != 1)}"
        asked = f"{request.gpus_min}-{request.gpus_max}"
        yield f"the policy {name} changes no numbers of GPUs: of {asked} the job gets {gpus}{_others('range')}"
    if request.weight != 1 and "weight" not in heeds:
        yield f"the policy {name} does not use weights{_others('weight')}"
    if request.deadline_s is not None and "deadline" not in heeds:
        yield f"the policy {name} does not use deadlines{_others('deadline')}"


def _others(term: str) -> str:
    """The policies that heed a term, in brackets."""
    # Where that depends on a knob, nothing is said.
    heeds = {name: getattr(cls, "heeds", None) for name, cls in policies().items()}
    known = sorted(name for name, words in heeds.items() if isinstance(words, frozenset) and term in words)
    return f" ({', '.join(known)} {'do' if len(known) > 1 else 'does'})" if known else ""
