"""What each reader keeps, skips and converts, on small samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trace_samples as samples

from fairway.core.job import Regime, Workload
from fairway.traces import FORMATS, read_trace, write_trace

Reading = Callable[..., Workload]


@pytest.fixture
def read(tmp_path: Path) -> Reading:
    def read(text: str, **options: str) -> Workload:
        path = tmp_path / "trace"
        path.write_text(text)
        return read_trace(path, **options)

    return read


def test_every_format_has_a_sample() -> None:
    assert set(samples.SAMPLES) == set(FORMATS)


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_the_format_is_found_from_the_content(read: Reading, name: str) -> None:
    assert read(samples.SAMPLES[name]).format == name


@pytest.mark.parametrize("name", samples.SAMPLES)
@pytest.mark.parametrize("change", [lambda t: t.replace("\n", "\r\n"), lambda t: t.rstrip("\n"), lambda t: t + "\n\n"])
def test_line_ends_do_not_matter(read: Reading, name: str, change: Callable[[str], str]) -> None:
    assert read(change(samples.SAMPLES[name])).jobs == read(samples.SAMPLES[name]).jobs


@pytest.mark.parametrize("text", [*samples.SAMPLES.values(), samples.TF_JOB, samples.LUCID])
def test_every_reader_round_trips_through_the_native_format(read: Reading, tmp_path: Path, text: str) -> None:
    workload = read(text)
    write_trace(workload, tmp_path / "copy")
    copy = read_trace(tmp_path / "copy")
    assert copy.format == "fairway"
    assert (copy.jobs, copy.skipped, copy.notes) == (workload.jobs, workload.skipped, workload.notes)


def test_gavel_keeps_steps_weight_and_data_set(read: Reading) -> None:
    first, second = read(samples.GAVEL).jobs
    assert (first.id, first.model, first.batch_size, first.steps) == ("0", "ResNet-18", 32, 1000)
    assert (first.gpus, first.weight, first.deadline_s, first.dataset) == (2, 1, None, "cifar10")
    assert (second.weight, second.dataset, second.submitted_s) == (5, "wikitext2", 17)
    assert second.deadline_s == 17 + 3600


def test_gavel_says_how_it_reads_an_slo_without_a_duration(read: Reading) -> None:
    assert "1 jobs" in read(samples.GAVEL).notes[0]


def test_shockwave_keeps_the_mode_and_multiplies_the_slo(read: Reading) -> None:
    gns, static, accordion = read(samples.SHOCKWAVE).jobs
    assert [job.adaptation for job in (gns, static, accordion)] == ["gns", "none", "accordion"]
    assert (gns.steps, gns.duration_s) == (134583, None)
    assert static.deadline_s == 64 + 1.5 * 2000


def test_tiresias_truncates_to_seconds_as_the_simulator_does(read: Reading) -> None:
    jobs = read(samples.TIRESIAS).jobs
    assert [(job.id, job.gpus, job.duration_s, job.model) for job in jobs] == [
        ("0", 1, 164, "vgg19"),
        ("1", 8, 147, "vgg11"),
    ]


def test_tiresias_columns_may_come_in_any_order(read: Reading) -> None:
    job = read("model_name,extra,duration,submit_time,num_gpu,job_id\nvgg,x,9,3,2,j\n").jobs[0]
    assert (job.id, job.submitted_s, job.gpus, job.duration_s) == ("j", 3, 2, 9)


def test_only_the_tensorflow_demo_renames_repeated_ids(read: Reading) -> None:
    workload = read(samples.TF_JOB)
    assert [job.id for job in workload.jobs] == ["10", "10#2"]
    assert "10#2" in workload.notes[0]


def test_muri_times_are_milliseconds(read: Reading) -> None:
    first, second = read(samples.MURI).jobs
    assert (first.duration_s, second.submitted_s, second.batch_size) == (5095.0, 1534.5, 16)


def test_elasticflow_deadlines(read: Reading) -> None:
    first, best_effort = read(samples.ELASTICFLOW).jobs
    assert (first.deadline_s, first.duration_s, first.batch_size) == (4426, 3930, 256)
    assert best_effort.deadline_s is None


def test_pollux_work_is_data_set_times_epochs(read: Reading) -> None:
    speech, cifar = read(samples.POLLUX).jobs
    assert (cifar.model, cifar.dataset, cifar.batch_size) == ("ResNet-18", "cifar10", 256)
    assert cifar.steps == 50_000 * 100 / (4096 / cifar.gpus)
    assert (speech.model, speech.batch_size, speech.gpus) == ("DeepSpeech2", 54, 6)


def test_philly_counts_from_the_earliest_and_numbers_by_row(read: Reading) -> None:
    early, late = read(samples.PHILLY).jobs
    assert (early.id, early.submitted_s, early.gpus, early.queue) == ("philly-1", 0, 4, "6214e9")
    assert (late.id, late.submitted_s, late.duration_s) == ("philly-0", 3600, 66)


def test_philly_json_adds_attempts_up_and_counts_the_rest(read: Reading) -> None:
    workload = read(samples.PHILLY_JSON)
    (job,) = workload.jobs
    assert (job.id, job.gpus, job.duration_s, job.submitted_s) == ("application_1", 3, 70, 0)
    assert (job.user, job.queue, job.status) == ("ce2f2a", "ee9e8c", "Pass")
    assert workload.skipped == {"no submit time": 1, "no end": 1}


def test_alibaba_shares_types_and_skips(read: Reading) -> None:
    workload = read(samples.ALIBABA)
    shared, whole = workload.jobs
    assert (shared.gpu_share, shared.gpu_types, shared.queue) == (0.46, ("v100m16", "v100m32"), "LS")
    assert (shared.submitted_s, shared.duration_s, whole.submitted_s, whole.gpus) == (0, 1300, 100, 8)
    assert (whole.gpu_share, whole.memory_bytes) == (1, 0)
    assert workload.skipped == {"no GPU": 1, "never ran": 1}


def test_helios_calendar_times_count_from_the_first_gpu_job(read: Reading) -> None:
    workload = read(samples.HELIOS)
    (job,) = workload.jobs
    assert (job.id, job.submitted_s, job.queue, job.status, job.gpus) == ("77", 0, "vc1", "COMPLETED", 8)
    assert workload.skipped == {"no GPU": 1, "never ran": 1}


def test_lucid_seconds_stay_as_they_are(read: Reading) -> None:
    first, second = read(samples.LUCID).jobs
    assert (first.submitted_s, first.model, first.dataset, first.batch_size) == (120, "ResNet18", "cifar10", 64)
    assert (second.submitted_s, second.batch_size) == (180, None)


def test_helios_epoch_seconds_are_shifted(read: Reading) -> None:
    jobs = read("job_id,gpu_num,submit_time,duration\n1,1,1585699200,5\n2,1,1585699260,5\n").jobs
    assert [job.submitted_s for job in jobs] == [0, 60]


def test_sacct_jobs_and_what_is_skipped(read: Reading) -> None:
    workload = read(samples.SACCT)
    array, job = workload.jobs
    assert (job.id, job.submitted_s, job.gpus, job.gpu_types) == ("123", 10, 4, ("a100",))
    assert (job.duration_s, job.user, job.queue, job.name) == (93784, "ann", "ml", "train")
    assert (array.id, array.queue, array.status, array.gpu_types) == ("124_4", "gpu", "CANCELLED", ())
    assert workload.skipped == {"job step": 1, "never ran": 2, "no GPU": 1, "no end": 1}


@pytest.mark.parametrize(
    ("field", "value", "gpus", "types"),
    [
        ("AllocTRES", "billing=8,gres/gpu:a100=2,gres/gpu:v100=1,gres/gpu=3", 3, ("a100", "v100")),
        ("AllocTRES", "gres/gpu:h100=2,gres/gpumem=80G,gres/gpuutil=5", 2, ("h100",)),
        ("ReqTRES", "gres/gpu=4", 4, ()),
        ("AllocGRES", "gpu:4", 4, ()),
        ("AllocGRES", "gpu:a100:2(S:0-1)", 2, ("a100",)),
        ("ReqGRES", "gres:gpu:1", 1, ()),
        ("ReqGRES", "gpu", 1, ()),
    ],
)
def test_sacct_gpu_fields(read: Reading, field: str, value: str, gpus: int, types: tuple[str, ...]) -> None:
    job = read(f"JobID|Submit|ElapsedRaw|{field}\n1|2024-01-01T00:00:00|60|{value}\n").jobs[0]
    assert (job.gpus, job.gpu_types, job.duration_s) == (gpus, types, 60)


@pytest.mark.parametrize(("text", "seconds"), [("1-00:00:01", 86401), ("01:02:03", 3723), ("02:03", 123), ("00:00", 0)])
def test_sacct_elapsed(read: Reading, text: str, seconds: float) -> None:
    job = read(f"JobID|Submit|Elapsed|ReqTRES|State\n1|2024-01-01T00:00:00|{text}|gres/gpu=1|FAILED\n").jobs[0]
    assert job.duration_s == seconds


def test_sacct_start_and_end_give_the_run_time_and_a_trailing_bar_is_fine(read: Reading) -> None:
    text = (
        "JobID|Submit|Start|End|ReqTRES|\n1|2024-01-01T00:00:00|2024-01-01T00:00:10|2024-01-01T00:01:00|gres/gpu=1|\n"
    )
    assert read(text).jobs[0].duration_s == 50


def test_native_keeps_every_field(read: Reading) -> None:
    workload = read(samples.NATIVE)
    assert (workload.skipped, workload.notes) == ({"no GPU": 3}, ("a remark",))
    job = workload.jobs[1]
    assert (job.gpus_min, job.gpus_max, job.deadline_s, job.gpu_types) == (1, 8, 99.0, ("v100",))
    assert job.regimes == (Regime(0.5, 10, 1.0), Regime(1.0, None, 2.0))


def test_a_byte_order_mark_and_a_quoted_line_break_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('\ufeffjob_id,num_gpu,submit_time,duration,note\n1,1,0,5,"two\nlines"\n2,1,0,5,x\n')
    assert len(read_trace(path)) == 2


def test_a_duration_of_zero_is_allowed(read: Reading) -> None:
    assert read("job_id,num_gpu,submit_time,duration\n1,1,0,0\n").jobs[0].duration_s == 0


def test_a_slurm_job_name_may_hold_the_separator(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(
        "JobID|JobName|Submit|ElapsedRaw|AllocTRES\n1|a|b|2026-01-01T00:00:00|60|gres/gpu=2\n"
        "2|plain|2026-01-01T00:01:00|60|gres/gpu:a100=1\n"
    )
    assert [(job.name, job.gpus) for job in read_trace(path).jobs] == [("a|b", 2), ("plain", 1)]
