"""The jobs of the last days, read from a journal: what they asked for, how long they computed, what became of them.

The journal may be that of a scheduler which runs. It is only read. A record that is damaged is counted and named, and
the others are used.

The work of a job is the time for which its attempts computed, on the gang that it asks for: not the time for which it
was suspended, and not what its restarts took. A job that may lose its work counts with its last attempt.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import FairwayError
from fairway.core.hardware import known_gpu
from fairway.core.job import JobSpec
from fairway.runtime.jobs.estimates import SUSPENDED_S, RestartCosts, gang_factor, same_type, spec_of
from fairway.runtime.jobs.held_spans import spans_in
from fairway.runtime.jobs.records import Attempt, JobRecord, family_of
from fairway.runtime.journal.database import APPLICATION, LOCKED_S, SCHEMA, JournalError
from fairway.runtime.journal.eras import FACT, Era, read_eras
from fairway.traces.history import JobHistory, PastJob, PastSpan

MOST_JOBS = 50_000
"""The most jobs in a history: the latest ones."""
NAMED = 10
"""How many jobs with damaged records are named."""
_SLACK_S = 1.0
"""How much later than its end a job may seem to begin: ends are written down by other processes."""
_WANTED = """
SELECT id, record FROM jobs WHERE settled = 0 OR ended_s >= ? OR ended_s IS NULL ORDER BY number DESC LIMIT ?
"""
_NOT_JSON, _WRONG, _BACKWARDS = "its record cannot be read", "a field is missing or wrong", "it ends before it begins"
_NEGATIVE, _TOO_LONG = "a time is negative or no number", "it ran for longer than it was there"
_NEVER_RAN = "never ran"
_TIMES = ("submitted_s", "started_s", "ended_s", "since_s", "ran_s", "gpu_s")
_ATTEMPT_TIMES = ("launched_s", "started_s", "ended_s", "ran_s", "start_s", "stop_s")


class PastScene(NamedTuple):
    """The scheduler that a journal belongs to. `now_s` is a date by its clock, which the time of day is ahead of by
    `shift_s`."""

    cluster: Cluster
    policy: str
    now_s: float
    shift_s: float
    min_run_s: float
    round_s: float | None = None
    placement: str = "packed"


class DamagedRecordError(Exception):
    """What is wrong with a record."""


def scene_of(path: Path, min_run_s: float) -> PastScene:
    """The scheduler that has left a journal, as it was when it stopped."""
    facts = _facts(path, ("machine", "policy", "origin_s", "last_s", "clock", "round_s", "placement"))
    try:
        nodes = [
            Node(str(one[2]) if len(one) > 2 else f"n{at}", str(one[0]), int(one[1]))
            for at, one in enumerate(facts["machine"][0])
        ]
        types = [_type(name) for name in dict.fromkeys(node.gpu_type for node in nodes)]
        now_s = float(facts["origin_s"]) + float(facts.get("last_s", 0.0))
        return PastScene(
            Cluster.of(nodes, types),
            str(facts["policy"]),
            now_s,
            float(facts.get("clock", {}).get("shift_s", 0.0)),
            min_run_s,
            float(facts["round_s"]) if isinstance(facts.get("round_s"), int | float) else None,
            str(facts.get("placement", "packed")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, FairwayError) as error:
        raise JournalError(f"{path} does not say on which GPUs its jobs ran ({error}); start the scheduler") from None


def _type(name: str) -> GpuType:
    known = known_gpu(name.partition("@")[0])
    return (
        GpuType(name, 0, 0.0, 1.0)
        if known is None
        else GpuType(name, known.memory_bytes, known.price_per_h, known.speed)
    )


def read_history(path: Path, since_s: float, scene: PastScene, most: int = MOST_JOBS) -> JobHistory:
    """The jobs in a journal that had not ended at a date by the scheduler's clock, until now."""
    records, damaged, more = _records(path, since_s, most)
    facts = _facts(path, (FACT, "gone", "origin_s"))
    since_s = min(max(since_s, float(facts.get("origin_s") or 0.0)), scene.now_s)
    reader = _PastReader(scene, since_s, records)
    jobs, left_out = list[PastJob](), Counter[str]()
    for record in records:
        found = reader.past(record)
        if found is None:
            left_out[_NEVER_RAN] += 1
        else:
            jobs.append(found)
    for why in damaged.values():
        left_out[f"damaged: {why}"] += 1
    left_out.update({f"beyond the latest {most:,}": more} if more else {})
    eras = read_eras(facts.get(FACT))
    whole_from_s = _whole_from_s(facts.get("gone"), records)
    notes = [*_era_notes(eras, since_s, scene.shift_s), *reader.notes()]
    if whole_from_s is not None and whole_from_s > since_s:
        when = _when(whole_from_s + scene.shift_s)
        notes.append(f"jobs that ended before {when} may have been deleted; the history is whole from then on")
    if damaged:
        names = ", ".join(list(damaged)[:NAMED]) + (f" and {len(damaged) - NAMED:,} more" * (len(damaged) > NAMED))
        notes.append(f"the records of {len(damaged):,} jobs are damaged, and these jobs left out: {names}")
    return JobHistory(
        since_s + scene.shift_s,
        scene.now_s + scene.shift_s,
        tuple(sorted(jobs, key=lambda job: job.spec.submitted_s)),
        scene.cluster,
        _policies(eras, since_s, scene.policy),
        scene.min_run_s,
        scene.round_s,
        scene.placement,
        dict(left_out),
        tuple(damaged),
        None if whole_from_s is None else whole_from_s + scene.shift_s,
        tuple(notes),
    )


class _PastReader:
    """Makes the jobs of a history from records. `since_s` is the date at which it begins."""

    def __init__(self, scene: PastScene, since_s: float, records: Sequence[JobRecord]) -> None:
        self._scene, self._since_s = scene, since_s
        # A start that nobody has measured counts as work, so it costs nothing besides.
        self._costs = RestartCosts(0.0)
        self._ends: dict[str, float] = {}
        self._seen: Counter[str] = Counter()
        for record in records:
            self._costs.remember(record)
            ended_s = scene.now_s if record.ended_s is None else record.ended_s
            for name in {record.id, str(family_of(record.id))}:
                self._ends[name] = max(self._ends.get(name, 0.0), ended_s)

    def past(self, record: JobRecord) -> PastJob | None:
        """A job with what became of it since the history began; None if it has not computed since."""
        request, scene = record.request, self._scene
        parts = [part for attempt in record.attempts if (part := self._part(record, attempt)) is not None]
        if request.preempt == "restart":
            work_s = sum(part.work_s for part in parts[-1:])
        else:
            work_s = sum(part.work_s for part in parts)
        if not parts or work_s <= 0:
            return None
        began_s = self._eligible_s(record)
        computed = [span for part in parts for span in part.spans]
        finished_s = record.ended_s if record.ended_s is not None else computed[-1].to_s
        self._note(record)
        spec = self._spec(record, began_s, work_s)
        at_s = began_s - spec.submitted_s
        spans = tuple(PastSpan(span.from_s - at_s, span.to_s - at_s, span.gpus) for span in computed)
        return PastJob(
            spec,
            max(spans[0].from_s, spec.submitted_s),
            max(min(finished_s, scene.now_s) - at_s, spans[-1].to_s),
            sum(part.held_s for part in parts),
            record.preemptions,
            len(parts),
            spans,
        )

    def notes(self) -> list[str]:
        """What a reader of the history should know."""
        told = {
            "here": "jobs that were there already count from the beginning of the history",
            "cut": "jobs that have not ended count with the work that they have done so far",
            "array": "jobs of arrays with a limit are replayed without it",
            "other": "jobs ran on GPUs that are not there any more",
        }
        return [f"{self._seen[key]:,} {text}" for key, text in told.items() if self._seen[key]]

    def _note(self, record: JobRecord) -> None:
        gpus = self._scene.cluster.gpu_count
        self._seen["here"] += record.submitted_s < self._since_s
        self._seen["cut"] += record.ended_s is None
        self._seen["array"] += bool(record.request.array_at_once)
        self._seen["other"] += any(gpu >= gpus for attempt in record.attempts for gpu in attempt.gpus)

    def _eligible_s(self, record: JobRecord) -> float:
        """When a job could have started: after its submission, its begin time and the jobs that it waited for."""
        request = record.request
        begin_s = 0.0 if request.begin_s is None else request.begin_s - self._scene.shift_s
        awaited_s = [self._ends.get(one.job, 0.0) for one in request.depends]
        found_s = min(max(record.submitted_s, begin_s, *awaited_s), record.attempts[0].launched_s)
        return max(found_s, self._since_s)

    def _spec(self, record: JobRecord, began_s: float, work_s: float) -> JobSpec:
        request = record.request
        cost_s = SUSPENDED_S if request.preempt == "suspend" else self._costs.expected_s(request, record.attempts)
        return replace(
            spec_of(record, began_s - self._since_s, work_s),
            checkpoint_s=cost_s,
            gpu_types=_names_here(request.gpu_types, self._scene.cluster),
            status=str(record.state),
        )

    def _part(self, record: JobRecord, attempt: Attempt) -> _Part | None:
        """What an attempt did since the history began."""
        now_s, since_s = self._scene.now_s, self._since_s
        spans, ran_s = self._spans(record, attempt)
        inside = [span._replace(from_s=max(span.from_s, since_s)) for span in spans if span.to_s > since_s]
        seen_s, inside_s = (sum(span.to_s - span.from_s for span in some) for some in (spans, inside))
        if inside_s <= 0 or ran_s <= 0:
            return None
        # Of a long attempt, only the latest spans are known.
        ran_s *= inside_s / seen_s
        fast_s = sum((span.to_s - span.from_s) * self._speed(record, span.gpus) for span in inside)
        from_s, ended_s = max(attempt.launched_s, since_s), now_s if attempt.ended_s is None else attempt.ended_s
        again_s = launch_s = 0.0
        if attempt.launched_s >= since_s:
            launch_s = max((attempt.started_s or 0.0) - attempt.launched_s, 0.0)
            if attempt is not record.attempts[0]:
                expected_s = self._costs.expected_s(record.request, record.attempts)
                again_s = expected_s if attempt.start_s is None else attempt.start_s
        held_s = min(launch_s + ran_s + (attempt.stop_s or 0.0), ended_s - from_s)
        return _Part(inside, held_s, max(ran_s - again_s, 0.0) * fast_s / inside_s)

    def _spans(self, record: JobRecord, attempt: Attempt) -> tuple[list[PastSpan], float]:
        """When an attempt computed, and for how long in all."""
        now_s, last = self._scene.now_s, attempt is record.attempt
        told = [(one.from_s, now_s if one.to_s is None else one.to_s, one.gpus) for one in spans_in(attempt)]
        ran_s = sum(max(to_s - from_s, 0.0) for from_s, to_s, _ in told) if attempt.ran_s is None else attempt.ran_s
        if attempt.spans is not None and last and record.since_s is not None:
            told.append((record.since_s, now_s, tuple(gpu for gpu in attempt.gpus if gpu >= 0)))
        if attempt.ran_s is not None and last and record.since_s is not None:
            ran_s += max(now_s - record.since_s, 0.0)
        return [PastSpan(from_s, max(to_s, from_s), gpus) for from_s, to_s, gpus in told], ran_s

    def _speed(self, record: JobRecord, gpus: Sequence[int]) -> float:
        """How fast a job was on some GPUs, where its gang on the type to which its work refers has 1."""
        request, cluster = record.request, self._scene.cluster
        gang = 1.0 if request.gpu_share < 1 else gang_factor(max(len(gpus), 1), request.gpus)
        if not gpus or gpus[0] >= cluster.gpu_count:
            return gang
        kind = cluster.types[cluster.node_type[cluster.node_of_gpu[gpus[0]]]]
        return gang * kind.speed / reference_speed(request.gpu_types, cluster)


class _Part(NamedTuple):
    """What an attempt did: when and where, for how long it held its GPUs, and how much of the work it did."""

    spans: list[PastSpan]
    held_s: float
    work_s: float


def _names_here(wanted: Sequence[str], cluster: Cluster) -> tuple[str, ...]:
    """The GPU types that a job may have, under the names that they have in a cluster."""
    here = [gpu.name for name in wanted for gpu in cluster.types if same_type(gpu.name, name)]
    return tuple(dict.fromkeys(here)) or tuple(wanted)


def reference_speed(gpu_types: Sequence[str], cluster: Cluster) -> float:
    """The speed of the GPU type to which the work of a job refers: the first one that it names, or of the cluster."""
    for name in gpu_types:
        for gpu in cluster.types:
            if same_type(gpu.name, name):
                return gpu.speed
    return cluster.types[0].speed


def _records(path: Path, since_s: float, most: int) -> tuple[list[JobRecord], dict[str, str], int]:
    """The sound records since a date in the order of submission, what is wrong with others, and how many there are
    more."""
    records, damaged = list[JobRecord](), dict[str, str]()
    with _reading(path) as db:
        rows = db.execute(_WANTED, (since_s, most)).fetchall()
        more = 0
        if len(rows) == most:
            count = "SELECT count(*) FROM jobs WHERE settled = 0 OR ended_s >= ? OR ended_s IS NULL"
            more = int(db.execute(count, (since_s,)).fetchone()[0]) - most
    for name, text in reversed(rows):
        try:
            records.append(sound_record(text))
        except DamagedRecordError as error:
            damaged[str(name)] = str(error)
    return records, damaged, max(more, 0)


def sound_record(text: Any) -> JobRecord:
    """The record in a row of the journal; `DamagedRecordError` if it says what cannot be."""
    try:
        values = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise DamagedRecordError(_NOT_JSON) from None
    try:
        if not all(map(_is_time, _times_in(values))) or not _is_time(values["submitted_s"] or -1):
            raise DamagedRecordError(_NEGATIVE)
        record = JobRecord.from_plain(values)
        spans = [span for attempt in record.attempts for span in spans_in(attempt)]
        gpus = [*(attempt.gpus for attempt in record.attempts), *(span.gpus for span in spans)]
        if not all(type(gpu) is int for some in gpus for gpu in some):
            raise DamagedRecordError(_WRONG)
        if not all(_is_time(date_s) for span in spans for date_s in (span.from_s or -1, span.to_s)):
            raise DamagedRecordError(_NEGATIVE)
        if any(span.seconds < 0 for span in spans):
            raise DamagedRecordError(_BACKWARDS)
    except (KeyError, TypeError, ValueError, AttributeError, FairwayError):
        raise DamagedRecordError(_WRONG) from None
    _refuse_backwards(record)
    return record


def _times_in(values: Mapping[str, Any]) -> Iterator[Any]:
    yield from (values[name] for name in _TIMES)
    for attempt in values["attempts"]:
        yield from (attempt.get(name) for name in _ATTEMPT_TIMES)
        yield attempt["launched_s"]


def _is_time(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and math.isfinite(value) and value >= 0)


def _refuse_backwards(record: JobRecord) -> None:
    last_s = record.submitted_s
    for attempt in record.attempts:
        times = [last_s, attempt.launched_s, attempt.started_s, attempt.ended_s]
        known = [one_s for one_s in times if one_s is not None]
        if any(later + _SLACK_S < earlier for earlier, later in pairwise(known)):
            raise DamagedRecordError(_BACKWARDS)
        last_s = attempt.launched_s
        if attempt.ended_s is not None and (attempt.ran_s or 0.0) > attempt.ended_s - attempt.launched_s + _SLACK_S:
            raise DamagedRecordError(_TOO_LONG)
    if record.ended_s is not None and record.ended_s + _SLACK_S < last_s:
        raise DamagedRecordError(_BACKWARDS)
    if (record.ended_s is None) == record.state.ended:
        raise DamagedRecordError(_WRONG)


def _policies(eras: Sequence[Era], since_s: float, policy: str) -> tuple[str, ...]:
    """The policies since a date, each once in a row, the present one last."""
    earlier = [era.policy for at, era in enumerate(eras) if at + 1 == len(eras) or eras[at + 1].since_s > since_s]
    found = [*earlier, policy]
    return tuple(one for at, one in enumerate(found) if at + 1 == len(found) or found[at + 1] != one)


def _era_notes(eras: Sequence[Era], since_s: float, shift_s: float) -> list[str]:
    """Where the policy or the GPUs were changed."""
    told = []
    for before, era in pairwise(eras):
        if era.since_s <= since_s:
            continue
        when = _when(era.since_s + shift_s)
        if before.policy != era.policy:
            told.append(f"the policy was {before.policy} until {when}, and then {era.policy}")
        if before.gpus != era.gpus:
            told.append(f"the machine had {_gpus(before.gpus)} until {when}, and then {_gpus(era.gpus)}")
    if eras and eras[0].since_s > since_s + _SLACK_S:
        told.append(f"which policy and which GPUs there were before {_when(eras[0].since_s + shift_s)} is not known")
    return told


def _gpus(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def _whole_from_s(gone: Any, records: Sequence[JobRecord]) -> float | None:
    """The date since which no job that ended was deleted; None if none ever was."""
    if not isinstance(gone, Mapping) or not gone.get("jobs"):
        return None
    until_s = gone.get("until_s")
    if isinstance(until_s, int | float):
        return float(until_s)
    # An earlier version deleted them. They are those that ended first.
    return min((record.ended_s for record in records if record.ended_s is not None), default=None)


def _when(date_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(date_s))


def _facts(path: Path, names: Collection[str]) -> dict[str, Any]:
    with _reading(path) as db:
        query = f"SELECT name, value FROM facts WHERE name IN ({', '.join('?' * len(names))})"
        return {name: json.loads(value) for name, value in db.execute(query, tuple(names))}


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads, while a block runs. Whatever is wrong with the file is told in one line."""
    try:
        # If SQLite opened an empty file, it would delete the write-ahead log beside it.
        if not path.exists() or not path.stat().st_size:
            raise JournalError(f"{path}: there is no journal")
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=LOCKED_S)) as db:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
                raise JournalError(f"{path} is no journal of Fairway")
            if version != SCHEMA:
                raise JournalError(f"{path} has schema {version}, not {SCHEMA}; start the scheduler with this Fairway")
            yield db
    except (sqlite3.Error, OSError, ValueError) as error:
        raise JournalError(f"{path} cannot be read: {error}; `fairway salvage` saves what can be read") from None
