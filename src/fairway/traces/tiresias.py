"""The family of the Tiresias simulator: its own trace, Muri's (in milliseconds) and ElasticFlow's (with deadlines).

All three share `job_id,num_gpu,submit_time,duration,model_name` in any order among other columns. The duration is the
work. `iterations` repeats it for a speed that the trace does not give, and is left out.
"""

from __future__ import annotations

from fairway.traces.fields import Jobs, Parsed, TraceRow, csv_table

TIRESIAS_COLUMNS = ("job_id", "num_gpu", "submit_time", "duration")
MURI_COLUMNS = (*TIRESIAS_COLUMNS, "iteration_time", "resource_time_0")
ELASTICFLOW_COLUMNS = (*TIRESIAS_COLUMNS, "ddl")
_DEMO_COLUMNS = frozenset(("model_size", "aggr_interval", "model_scale"))


def read_tiresias(text: str, path: str) -> Parsed:
    """Whole seconds, truncated as in the simulator. The demo `tf_job.csv` repeats ids, so they are renamed there."""
    rows = csv_table(text, path, TIRESIAS_COLUMNS)
    demo = _DEMO_COLUMNS.issubset(rows.columns)
    jobs, renamed = Jobs(path), []
    for row in rows:
        job_id = row.required("job_id")
        if demo and job_id in jobs:
            job_id = _free_id(job_id, jobs)
            renamed.append(job_id)
        jobs.add(
            row.line,
            id=job_id,
            submitted_s=float(int(row.number("submit_time"))),
            gpus=row.gpus("num_gpu"),
            duration_s=float(int(row.number("duration"))),
            model=row.text("model_name"),
        )
    if renamed:
        jobs.notes.append(f"repeated ids renamed: {', '.join(renamed[:5])}{' ...' if len(renamed) > 5 else ''}")
    return jobs.finish()


def _free_id(job_id: str, jobs: Jobs) -> str:
    number = 2
    while f"{job_id}#{number}" in jobs:
        number += 1
    return f"{job_id}#{number}"


def read_muri(text: str, path: str) -> Parsed:
    """Milliseconds become seconds. A `JobSpec` has no place for the stage times of an iteration and the priority."""
    jobs = Jobs(path)
    for row in csv_table(text, path, MURI_COLUMNS):
        jobs.add(
            row.line,
            id=row.required("job_id"),
            submitted_s=row.number("submit_time") / 1000,
            gpus=row.gpus("num_gpu"),
            duration_s=row.number("duration") / 1000,
            model=row.text("model_name"),
            batch_size=row.optional_whole("batch_size"),
        )
    return jobs.finish()


def read_elasticflow(text: str, path: str) -> Parsed:
    """Deadlines (`ddl`) are seconds on the trace's clock; a best-effort job has none."""
    jobs = Jobs(path)
    for row in csv_table(text, path, ELASTICFLOW_COLUMNS):
        jobs.add(
            row.line,
            id=row.required("job_id"),
            submitted_s=row.number("submit_time"),
            gpus=row.gpus("num_gpu"),
            duration_s=row.number("duration"),
            model=row.text("model_name"),
            batch_size=row.optional_whole("batch_size"),
            deadline_s=_deadline_s(row),
        )
    return jobs.finish()


def _deadline_s(row: TraceRow) -> float | None:
    if row.blank("ddl") or row.optional_whole("best_effort", at_least=0):
        return None
    return row.number("ddl")
