"""Every public trace file at hand is read, counted and written back without loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.testing.pace import loops
from fairway.traces import read_cluster, read_trace, write_trace
from fairway.traces.pollux import APPLICATIONS

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
DATA = SHARED / "data"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="no folder of public traces beside the repository")

COUNTS = {
    "alibaba2023/openb_pod_list_default.csv": ("alibaba", 6203),
    "alibaba2023/openb_pod_list_gpushare40.csv": ("alibaba", 6119),
    "elasticflow/philly_103959.csv": ("elasticflow", 876),
    "elasticflow/resnet_cifar_trace.csv": ("elasticflow", 5),
    "gavel/traces/gavel_multi_120j_lam900_s42.trace": ("gavel", 120),
    "gavel/traces/gavel_multi_200j_lam300_s42.trace": ("gavel", 200),
    "gavel/traces/gavel_single_120j_lam540_s42.trace": ("gavel", 120),
    "gavel/traces/gavel_single_200j_lam180_s42.trace": ("gavel", 200),
    "gavel/traces/max_min_fairness.trace": ("gavel", 96),
    "gavel/traces/minimize_makespan.trace": ("gavel", 100),
    "gavel/traces/shockwave_256gpus_900jobs.trace": ("shockwave", 900),
    "gavel/traces/shockwave_64gpus_220jobs.trace": ("shockwave", 220),
    "gavel/traces/shockwave_tacc_120jobs.trace": ("shockwave", 120),
    "gavel/traces/small_test.trace": ("gavel", 20),
    "muri/cluster_exp_trace.csv": ("muri", 400),
    "muri/trace1.csv": ("muri", 1494),
    "muri/trace1_tir.csv": ("tiresias", 1494),
    "muri/trace2.csv": ("muri", 5755),
    "muri/trace2_tir.csv": ("tiresias", 5755),
    "muri/trace3.csv": ("muri", 992),
    "muri/trace3_tir.csv": ("tiresias", 992),
    "philly/philly.csv": ("philly", 79715),
    "tiresias/60_job.csv": ("tiresias", 60),
    "tiresias/tf_job.csv": ("tiresias", 2),
}
POLLUX_COUNTS = {
    "workloads-0.5": 80,
    "workloads-1.5": 240,
    "workloads-2.0": 320,
    "newtrace": 960,
    "scale_2x": 320,
    "scale_rate_10": 80,
}
CLUSTERS = {
    "cluster_spec.csv": 64,
    "n1g4.csv": 4,
    "n2g4.csv": 8,
    "n4g4.csv": 16,
    "n8g4.csv": 32,
    "n15g4.csv": 60,
    "n32g4.csv": 128,
    "n8g8.csv": 64,
    "n160g8.csv": 1280,
    "n256g8.csv": 2048,
}


def all_traces() -> list[str]:
    patterns = ("gavel/traces/*", "muri/*.csv", "philly/*.csv", "pollux/**/workload-*.csv", "elasticflow/*.csv")
    found = [path for pattern in patterns for path in DATA.glob(pattern)]
    found += DATA.glob("alibaba2023/openb_pod_list_*.csv")
    found += [DATA / "tiresias/60_job.csv", DATA / "tiresias/tf_job.csv"]
    return sorted(str(path.relative_to(DATA)) for path in found)


def expected(name: str) -> tuple[str, int]:
    if name.startswith("pollux/"):
        return "pollux", POLLUX_COUNTS.get(Path(name).parent.name, 160)
    return COUNTS[name]


@pytest.mark.parametrize("name", all_traces())
def test_a_public_trace_is_read_counted_and_written_back(name: str, tmp_path: Path) -> None:
    workload = read_trace(DATA / name)
    assert (workload.format, len(workload)) == expected(name)
    write_trace(workload, tmp_path / "copy")
    copy = read_trace(tmp_path / "copy")
    assert copy.jobs == workload.jobs
    assert (copy.skipped, copy.notes) == (workload.skipped, workload.notes)


def test_no_listed_trace_is_absent() -> None:
    assert set(COUNTS) <= set(all_traces())


def test_what_alibaba_skips_is_counted() -> None:
    workload = read_trace(DATA / "alibaba2023/openb_pod_list_default.csv")
    assert workload.skipped == {"no GPU": 1088, "never ran": 861}
    assert sum(job.gpu_share < 1 for job in workload.jobs) > 1000


def test_the_tiresias_trace_has_its_known_work() -> None:
    jobs = read_trace(DATA / "tiresias/60_job.csv").jobs
    assert sum(job.gpus * (job.duration_s or 0) for job in jobs) == 26_624
    assert sum(job.duration_s or 0 for job in jobs) / 60 == pytest.approx(178.42, abs=0.01)


def test_muri_in_milliseconds_is_the_tiresias_copy_in_seconds() -> None:
    muri, copy = read_trace(DATA / "muri/trace3.csv").jobs, read_trace(DATA / "muri/trace3_tir.csv").jobs
    assert [(j.id, j.gpus, j.submitted_s, j.duration_s) for j in muri] == [
        (j.id, j.gpus, j.submitted_s, j.duration_s) for j in copy
    ]


def test_pollux_samples_give_the_iterations_of_the_validation_tables() -> None:
    """The artifact's own runs at the smallest batch size end within one iteration per epoch of our sample counts."""
    for name, application in APPLICATIONS.items():
        tables = (DATA / "pollux/profiles" / name).glob("validation-*.csv")
        batch, table = min((int(path.stem.split("-")[1]), path) for path in tables)
        rows = table.read_text().split()[1:]
        iterations = int(float(rows[-1].split(",")[1]))
        assert len(rows) == application.epochs
        assert abs(application.samples / batch - iterations) <= application.epochs


def test_philly_is_read_within_its_time() -> None:
    assert loops(lambda: read_trace(DATA / "philly/philly.csv"), tries=2) < 600


@pytest.mark.parametrize("name", CLUSTERS)
def test_tiresias_clusters(name: str) -> None:
    assert read_cluster(str(DATA / "tiresias" / name)).gpu_count == CLUSTERS[name]


def test_every_other_tiresias_cluster_is_read() -> None:
    for path in sorted(DATA.glob("tiresias/specs/*.csv")):
        assert read_cluster(str(path)).gpu_count == CLUSTERS[path.name]


@pytest.mark.parametrize("name", ["openb_node_list_all_node.csv", "openb_node_list_gpu_node.csv"])
def test_alibaba_nodes(name: str) -> None:
    cluster = read_cluster(str(DATA / "alibaba2023" / name))
    assert (len(cluster.nodes), cluster.gpu_count) == (1213, 6212)
