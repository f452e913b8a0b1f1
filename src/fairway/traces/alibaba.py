"""Alibaba's 2023 GPU trace (`openb_pod_list_*.csv`): Kubernetes pods, many of which hold a part of one GPU.

Times are seconds from an arbitrary start. `memory_mib` is host memory, not the GPU's.
"""

from __future__ import annotations

from fairway.traces.fields import Jobs, Parsed, TraceRow, csv_table

ALIBABA_COLUMNS = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")


def read_alibaba(text: str, path: str) -> Parsed:
    """Pods with a GPU that ran; the quality-of-service class is the queue."""
    jobs = Jobs(path)
    for row in csv_table(text, path, ALIBABA_COLUMNS):
        gpus = row.gpus("num_gpu", at_least=0)
        if gpus == 0:
            jobs.skip("no GPU")
        elif row.blank("scheduled_time"):
            jobs.skip("never ran")
        elif row.blank("deletion_time"):
            jobs.skip("no end")
        else:
            jobs.add(
                row.line,
                id=row.required("name"),
                submitted_s=row.number("creation_time"),
                gpus=gpus,
                duration_s=_duration_s(row),
                queue=row.text("qos"),
                gpu_types=tuple(part.strip().lower() for part in row.text("gpu_spec").split("|") if part.strip()),
                gpu_share=row.whole("gpu_milli", at_least=1, at_most=1000) / 1000,
                status=row.text("pod_phase"),
            )
    return jobs.finish(from_zero=True)


def _duration_s(row: TraceRow) -> float:
    start_s, end_s = row.number("scheduled_time"), row.number("deletion_time")
    if end_s < start_s:
        raise row.error(f"deletion_time {end_s:g} is before scheduled_time {start_s:g}")
    return end_s - start_s
