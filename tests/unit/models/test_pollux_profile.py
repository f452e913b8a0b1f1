"""Profiles in the format of the Pollux artifact: what is read, what lies between measurements, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairway.core.batch import Split
from fairway.core.errors import InputError
from fairway.models.pollux_profile import Application, PolluxProfile
from fairway.models.pollux_timings import Timings, packed_shape, smallest_rotation
from fairway.models.profile import ProfileKey, load_profile

PLACEMENTS = {1: 1.0, 2: 0.8, 4: 0.6, 11: 1.2, 12: 1.5, 112: 2.0, 44: 1.1}
"""Seconds of a pass of 10 samples by placement; a pass of 20 takes twice as long, and a tenth of it synchronises."""


def write_application(
    root: Path, name: str = "cifar10", suffix: str = "-aws", local: tuple[int, ...] = (10, 20)
) -> Path:
    """Two epochs at the global batches 20, 40 and 80; variance and signal chosen so that gains are easy to compute."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{at},{each},{s * each / 10},{s * each / 100}" for at, s in PLACEMENTS.items() for each in local]
    (folder / f"placements{suffix}.csv").write_text("\n".join(["placement,local_bsz,step_time,sync_time", *rows]))
    rows = [f"{n},{n},{each},{n * each / 10},0" for n in (6, 8, 16) for each in local]
    header = "num_nodes,num_replicas,local_bsz,step_time,sync_time"
    (folder / f"scalability{suffix}.csv").write_text("\n".join([header, *rows]))
    for batch, more in ((20, 0.0), (40, 5.0), (80, -2.0)):
        text = "progress,iteration,metric,grad_sqr,grad_var\n"
        text += f"{100 + more},{2000 / batch},0.5,1,1\n{300 + more},{6000 / batch},0.7,1,{batch / 20}\n"
        (folder / f"validation-{batch}.csv").write_text(text)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_application(tmp_path)
    return tmp_path


@pytest.fixture
def profile(root: Path) -> PolluxProfile:
    return PolluxProfile(str(root))


@pytest.fixture
def application(profile: PolluxProfile) -> Application:
    return profile.application("cifar10")


@pytest.fixture
def timings(application: Application) -> Timings:
    found = application.timings("aws")
    assert found is not None
    return found


def test_a_directory_is_a_profile_of_its_applications(root: Path) -> None:
    profile = load_profile(str(root))
    assert isinstance(profile, PolluxProfile)
    assert (profile.name, profile.models) == (root.name, ("ResNet-18",))
    assert profile.gpu_types == ("aws",)


def test_an_application_is_found_by_its_own_name_and_by_its_model(profile: PolluxProfile) -> None:
    assert profile.application("resnet18") is profile.application("CIFAR10") is profile.applications["cifar10"]
    with pytest.raises(InputError, match="unknown model 'nonsense'; known: ResNet-18"):
        profile.application("nonsense")


def test_a_step_is_the_mini_batch_of_one_gpu(profile: PolluxProfile) -> None:
    assert profile.rate("ResNet-18", 10, "aws", 1) == 1.0
    assert profile.rate("ResNet-18", 10, "aws", 4) == pytest.approx(4 / 0.6)
    assert profile.rate("ResNet-18", 15, "aws", 4) == pytest.approx(4 / 0.9)
    assert profile.rate("ResNet-18", 10, "aws", 8) == pytest.approx(8 / 1.1)
    assert profile.rate("ResNet-18", 10, "aws", 2, spread=True) == pytest.approx(2 / 1.2)
    assert profile.rate("ResNet-18", None, "aws", 1) == profile.rate("ResNet-18", 20, "aws", 1)


def test_a_mini_batch_beyond_the_measured_ones_does_not_fit(profile: PolluxProfile) -> None:
    assert profile.rate("ResNet-18", 21, "aws", 1) == 0.0


def test_gpu_types_go_by_both_names_and_unknown_ones_are_refused(profile: PolluxProfile) -> None:
    assert profile.rate("ResNet-18", 10, "t4", 2) == profile.rate("ResNet-18", 10, "aws", 2)
    with pytest.raises(InputError, match="unknown GPU type 'k80'; known: aws"):
        profile.rate("ResNet-18", 10, "k80", 2)
    with pytest.raises(InputError, match="at least 1 GPU"):
        profile.rate("ResNet-18", 10, "aws", 0)


def test_an_application_that_was_not_timed_on_a_known_type_cannot_run_there(root: Path) -> None:
    write_application(root, "bert", "-rtx")
    profile = PolluxProfile(str(root))
    assert profile.rate("bert", 10, "aws", 1) == 0.0
    assert profile.rate("bert", 10, "rtx", 1) > 0


def test_timings_without_a_type_stand_for_every_type(tmp_path: Path) -> None:
    write_application(tmp_path, suffix="")
    assert PolluxProfile(str(tmp_path)).rate("cifar10", 10, "h100", 1) == 1.0


def test_pairs_were_not_measured(profile: PolluxProfile) -> None:
    assert profile.pair_rates(ProfileKey("cifar10", 10, 1), ProfileKey("cifar10", 10, 1), "aws") is None


@pytest.mark.parametrize(
    ("shape", "named"), [((4, 4, 2), (2, 4, 4)), ((2, 1, 1), (1, 1, 2)), ((3,), (3,)), ((1, 2, 1, 1), (1, 1, 1, 2))]
)
def test_a_ring_of_nodes_is_named_by_its_smallest_rotation(shape: tuple[int, ...], named: tuple[int, ...]) -> None:
    assert smallest_rotation(shape) == named


def test_packed_shapes() -> None:
    assert [packed_shape(n, 4) for n in (1, 4, 6, 8)] == [(1,), (4,), (4, 2), (4, 4)]


def test_where_a_gang_sits_matters(timings: Timings) -> None:
    assert timings.pass_s((2,), 10) == pytest.approx((0.8, 0.08))
    assert timings.pass_s((1, 1), 10) == pytest.approx((1.2, 0.12))
    assert timings.pass_s((2, 1, 1), 10) == timings.pass_s((1, 1, 2), 10) == pytest.approx((2.0, 0.2))


def test_accumulation_repeats_all_but_the_synchronisation(timings: Timings) -> None:
    assert timings.iteration_s((2,), Split(10, 0)) == pytest.approx(0.8)
    assert timings.iteration_s((2,), Split(10, 2)) == pytest.approx(0.8 + 2 * 0.72)


def test_a_placement_that_was_not_measured_lies_between_those_that_were(timings: Timings) -> None:
    # (12, 12) is inside the triangle of (8, 8), (16, 16) and, at 20 samples, in proportion.
    step_s, sync_s = timings.pass_s((1,) * 12, 10)
    assert step_s == pytest.approx(12.0)
    assert timings.pass_s((1,) * 12, 20)[0] == pytest.approx(24.0)
    assert sync_s == 0


def test_a_gang_outside_of_the_measured_range_is_timed_like_the_nearest(timings: Timings) -> None:
    assert timings.pass_s((8, 8), 10) == timings.pass_s((4, 4), 10)
    assert timings.pass_s((1,) * 30, 10)[0] == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("batch", "gpus", "split"),
    [
        (20, 1, Split(20, 0)),
        (40, 1, Split(20, 1)),
        (30, 1, Split(15, 1)),
        (80, 2, Split(20, 1)),
        (80, 4, Split(20, 0)),
        (70, 3, Split(12, 1)),
        (80, 3, Split(13, 1)),
    ],
)
def test_a_fixed_batch_is_split_so_that_every_gpu_has_room(
    application: Application, timings: Timings, batch: int, gpus: int, split: Split
) -> None:
    # 80 on 3 GPUs would be 14 per pass, which makes 84; the largest batch that was run caps it.
    assert application.split(batch, gpus, timings) == split


def test_gains_come_from_the_gradient_statistics_of_each_epoch(application: Application) -> None:
    assert application.gains(20).tolist() == [1.0, 1.0]
    # At 40 the batch is twice the first; variance 1 in epoch 0 and 2 in epoch 1, signal 1.
    assert application.gains(40) == pytest.approx([2 / 1.5, 3 / 2.0])
    # Between 40 and 80 the variance of epoch 1 lies between 2 and 4.
    assert application.gains(60) == pytest.approx([2 / (1 / 3 + 1), 4 / (3 / 3 + 1)])


def test_an_epoch_ends_where_the_quickest_run_ended_it(application: Application) -> None:
    assert (application.epochs, application.first_batch) == (2, 20)
    assert application.ends.tolist() == [98.0, 298.0]
    assert application.iterations(40).tolist() == [50.0, 150.0]


def test_the_largest_mini_batch_follows_the_artifact(tmp_path: Path) -> None:
    write_application(tmp_path, "yolov3", local=(4, 8, 16))
    write_application(tmp_path, "bert", local=(4, 8, 16))
    profile = PolluxProfile(str(tmp_path))
    assert [_most(profile, name) for name in ("yolov3", "bert")] == [8, 16]


def _most(profile: PolluxProfile, name: str) -> int:
    timings = profile.timings(name, "aws")
    assert timings is not None
    return timings.most_local


def _replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_replace("placements-aws.csv", "step_time", "steptime"), "placements-aws.csv: no column 'step_time'"),
        (
            _replace("placements-aws.csv", "1,10,1.0", "1,10,fast"),
            "placements-aws.csv:2: step_time 'fast' is not a pos",
        ),
        (_replace("placements-aws.csv", "112,10", "102,10"), "placement '102' is not a row of digits"),
        (_replace("scalability-aws.csv", "6,6,10", "6,0,10"), "scalability-aws.csv:2: num_replicas '0'"),
        (
            _replace("validation-40.csv", ",2.0", ",-2"),
            "validation-40.csv:3: grad_var '-2' is not a number of at least 0",
        ),
        (_replace("validation-20.csv", "300.0", "90"), "progress must rise from epoch to epoch"),
        (lambda folder: (folder / "validation-40.csv").write_text("progress,iteration,grad_sqr,grad_var\n"), "no rows"),
        (lambda folder: (folder / "validation-4o.csv").write_text("x"), "'4o' is not a batch size"),
        (
            lambda folder: (folder / "validation-40.csv").write_text("progress,iteration,grad_sqr,grad_var\n1,1,1,1\n"),
            "1 epochs; validation-20.csv has 2",
        ),
        (lambda folder: (folder / "placements-aws.csv").unlink(), "no placements.csv"),
        (_replace("placements-aws.csv", "1,10,1.0,0.1", "1,10,1.0,1.5"), "aws.csv:2: sync_time 1.5 is longer than the"),
        (
            lambda folder: (folder / "validation-40.csv").write_text(
                'progress,iteration,grad_sqr,grad_var\n"' + "1" * 200_000
            ),
            "validation-40.csv: this is not a CSV table",
        ),
        (lambda folder: (folder / "placements-aws.csv").write_bytes(b"\xff\xfe"), "not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(
    root: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(root / "cifar10")
    with pytest.raises(InputError) as error:
        PolluxProfile(str(root)).rate("cifar10", 10, "aws", 1)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_directory_without_applications_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no application here"):
        load_profile(str(tmp_path))


def test_gains_of_the_first_batch_are_one_whatever_the_noise(application: Application) -> None:
    assert np.allclose(application.gains(application.first_batch), 1.0)


def test_too_few_measurements_to_lie_between_are_taken_as_they_are(root: Path) -> None:
    folder = root / "cifar10"
    (folder / "scalability-aws.csv").unlink()
    (folder / "placements-aws.csv").write_text("placement,local_bsz,step_time,sync_time\n1,10,1.0,0.1\n")
    assert PolluxProfile(str(root)).rate("cifar10", 10, "aws", 4) > 0
