"""Discovery of GPUs, with a driver's library that says what a test wants."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairway.core.errors import InputError
from fairway.core.hardware import CATALOGUE
from fairway.runtime.jobs.estimates import speeds_of
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes import machine as machine_module
from fairway.runtime.processes.machine import (
    ForeignProcesses,
    KnownGpus,
    Nvml,
    found_machine,
    nvidia_machine,
    type_name,
    visible,
    wish_of,
)
from fairway.testing.fake_nvml import MISMATCH, NO_LIBRARY, NOT_LOADED, FakeError, FakeGpu, FakeNvml

CC = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def _gpus(count: int, **about: object) -> list[FakeGpu]:
    return [FakeGpu(uuid=f"GPU-{number:04d}", **about) for number in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA A10G", "a10"),
        ("NVIDIA A10", "a10"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100S-PCIE-32GB", "v100"),
        ("Tesla T4", "t4"),
        ("Tesla K80", "k80"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Quadro RTX 5000", "rtx5000"),
        ("NVIDIA RTX 5000 Ada Generation", "rtx-5000-ada"),
        ("NVIDIA RTX A1000", "rtx-a1000"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA", "gpu"),
    ],
)
def test_product_names_become_types(product: str, name: str) -> None:
    assert type_name(product) == name


def test_a_machine_of_one_type_is_one_node_whose_gpus_have_names_for_cuda() -> None:
    machine = nvidia_machine(Nvml(FakeNvml(_gpus(4))))
    assert machine is not None
    assert [(node.gpu_type, node.gpus) for node in machine.cluster.nodes] == [("h200", 4)]
    assert machine.devices == ["GPU-0000", "GPU-0001", "GPU-0002", "GPU-0003"]
    kind = machine.cluster.types[0]
    assert (kind.memory_bytes, kind.speed) == (141 << 30, CATALOGUE["h200"].speed)
    assert machine.text == "4 × h200"


def test_a_mixed_machine_is_a_node_for_each_type_with_devices_in_their_order() -> None:
    gpus = _gpus(4)
    gpus[1].name = gpus[3].name = "Tesla T4"
    machine = nvidia_machine(Nvml(FakeNvml(gpus)))
    assert machine is not None
    assert [(node.gpu_type, node.gpus) for node in machine.cluster.nodes] == [("h200", 2), ("t4", 2)]
    assert len({node.name for node in machine.cluster.nodes}) == 2
    assert machine.devices == ["GPU-0000", "GPU-0002", "GPU-0001", "GPU-0003"]


def test_variants_of_one_type_are_told_apart_and_found_by_their_common_name() -> None:
    gpus = _gpus(2, name="NVIDIA A100", memory_bytes=80 << 30)
    gpus[0].memory_bytes = 40 << 30
    machine = nvidia_machine(Nvml(FakeNvml(gpus)))
    assert machine is not None
    assert [gpu.name for gpu in machine.cluster.types] == ["a100@40g", "a100@80g"]
    request = JobRequest(command=("true",), gpu_types=("a100",))
    assert speeds_of(request, machine.cluster) == (1.0, 1.0)
    larger = JobRequest(command=("true",), memory_bytes=60 << 30)
    assert speeds_of(larger, machine.cluster) == (0.0, 1.0)


def test_an_unknown_gpu_gets_a_guess_of_its_speed() -> None:
    machine = nvidia_machine(Nvml(FakeNvml(_gpus(1, name="NVIDIA GeForce RTX 3090", memory_bytes=24 << 30))))
    assert machine is not None
    kind = machine.cluster.types[0]
    assert (kind.name, kind.memory_bytes) == ("rtx-3090", 24 << 30)
    assert 1.0 < kind.speed < 3.0
    mute = nvidia_machine(Nvml(FakeNvml(_gpus(1, name="NVIDIA Something", cores=None))))
    assert mute is not None
    assert mute.cluster.types[0].speed == 1.0


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"mig": 1}, "MIG"),
        ({"remapped": (0, 1, 1, 0)}, "reset"),
        ({"remapped": (0, 1, 0, 1)}, "replaced"),
        ({"remapped": None, "ecc": 3}, "3 errors"),
        ({"lost": True}, "GPU is lost"),
    ],
)
def test_gpus_with_a_problem_are_left_out_with_the_reason(about: dict[str, object], why: str) -> None:
    gpus = _gpus(3)
    for name, value in about.items():
        setattr(gpus[1], name, value)
    machine = nvidia_machine(Nvml(FakeNvml(gpus)))
    assert machine is not None
    assert machine.devices == ["GPU-0000", "GPU-0002"]
    assert len(machine.left_out) == 1
    assert machine.left_out[0].startswith("GPU 1")
    assert why in machine.left_out[0]


def test_a_driver_that_does_not_know_something_is_no_problem() -> None:
    machine = nvidia_machine(Nvml(FakeNvml(_gpus(1, mig=-1, remapped=None, ecc=-1))))
    assert machine is not None
    assert machine.left_out == ()


@pytest.mark.parametrize(
    ("told", "expected"),
    [("0,2", [0, 2]), ("2,0", [2, 0]), ("GPU-0001", [1]), ("", []), ("-1", []), ("0,9,1", [0]), (" 1 ", [1])],
)
def test_what_cuda_would_not_show_us_is_not_ours(told: str, expected: list[int]) -> None:
    gpus = Nvml(FakeNvml(_gpus(3))).gpus()
    assert [gpu.number for gpu in visible(gpus, {"CUDA_VISIBLE_DEVICES": told})] == expected


def test_gpus_are_found_taken_in_part_or_replaced_by_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(_gpus(3)))
    assert found_machine("auto").devices == ["GPU-0000", "GPU-0001", "GPU-0002"]
    assert found_machine("nvidia:0,2").devices == ["GPU-0000", "GPU-0002"]
    assert found_machine("5").devices is None
    with pytest.raises(InputError, match="there is no GPU 7"):
        found_machine("nvidia:7")
    with pytest.raises(InputError, match="numbers with commas"):
        found_machine("nvidia:a")
    monkeypatch.setattr(machine_module, "DRIVER_TRACES", ())
    for no_driver in (FakeNvml([], trouble=NO_LIBRARY), None):
        monkeypatch.setitem(sys.modules, "pynvml", no_driver)
        slots = found_machine("auto")
        assert slots.devices is None
        assert slots.cluster.gpu_count == len(os.sched_getaffinity(0))
        with pytest.raises(InputError, match="no NVIDIA GPU"):
            found_machine("nvidia")


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (FakeNvml([], trouble=MISMATCH), "NVML: Driver/library version mismatch; the driver was upgraded: reboot, or"),
        (FakeNvml([], trouble=NOT_LOADED), "NVML: Driver Not Loaded; its kernel module is not loaded: `modprobe"),
        (FakeNvml([], trouble=NO_LIBRARY), "NVML: NVML Shared Library Not Found; the driver is loaded, but its lib"),
        (FakeNvml([], trouble=FakeError("Unknown Error")), "NVML: Unknown Error; `nvidia-smi` and `dmesg` say more"),
        (None, "install the Python package nvidia-ml-py"),
        (FakeNvml([]), "the driver lists none"),
        (
            FakeNvml(_gpus(2, mig=1)),
            "GPU 0 (NVIDIA H200): it is divided into MIG instances, which Fairway does not use",
        ),
        (FakeNvml(_gpus(2)), "CUDA_VISIBLE_DEVICES= hides all 2"),
    ],
    ids=("mismatch", "not loaded", "no library", "unknown", "no pynvml", "no GPU", "MIG", "hidden"),
)
def test_a_machine_with_a_driver_never_becomes_slots_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: FakeNvml | None, why: str
) -> None:
    monkeypatch.setattr(machine_module, "DRIVER_TRACES", (str(tmp_path),))
    monkeypatch.setitem(sys.modules, "pynvml", library)
    with pytest.raises(InputError) as refused:
        found_machine("auto", {"CUDA_VISIBLE_DEVICES": ""} if "hides" in why else {})
    told = str(refused.value)
    assert told.startswith("--gpus auto: no NVIDIA GPU can be used here: ")
    assert why in told
    assert told.endswith(". `--gpus N` makes N virtual GPUs on the CPU")
    assert "\n" not in told
    assert found_machine("3").cluster.gpu_count == 3, "who wants slots can have them"


def _known(gpus: list[FakeGpu], words: str = "auto", visible: str | None = None) -> KnownGpus:
    found = nvidia_machine(Nvml(FakeNvml(gpus)))
    assert found is not None
    assert found.devices is not None
    plain = KnownGpus((wish_of(words)[0], visible), found.cluster, found.devices).plain()
    known = KnownGpus.of_plain(json.loads(json.dumps(plain)))
    assert known is not None
    assert (known.cluster.nodes, known.cluster.types) == (found.cluster.nodes, found.cluster.types)
    return known


def test_gpus_that_were_known_are_still_there_when_the_driver_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    known = _known([*_gpus(2), FakeGpu("Tesla T4", uuid="GPU-T4", memory_bytes=16 << 30)])
    monkeypatch.setattr(machine_module, "DRIVER_TRACES", ())
    for trouble in (MISMATCH, NOT_LOADED, NO_LIBRARY):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([], trouble=trouble))
        for words in ("auto", "nvidia"):
            machine = found_machine(words, known=known)
            assert (machine.cluster, machine.devices) == (known.cluster, known.devices)
            assert machine.nvml is not None
            assert str(trouble) in machine.nvml.trouble
        # Which of the known GPUs have these numbers, only the driver could say.
        with pytest.raises(InputError, match=f"--gpus nvidia:0: .*{trouble}"):
            found_machine("nvidia:0", known=known)


def test_a_gpu_that_is_missing_stays_in_the_machine_and_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = _gpus(3)
    library, known = FakeNvml(gpus), _known(gpus)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    library.all = [gpus[0], gpus[2]]
    machine = found_machine("auto", known=known)
    assert machine.devices == ["GPU-0000", "GPU-0001", "GPU-0002"]
    assert machine.nvml is not None
    sitters = ForeignProcesses(machine.nvml, machine.devices, dict)
    assert sitters.look() == {1: "the driver has lost it (Not Found)"}
    library.all = gpus
    assert sitters.look() == {}
    # One that is out of order stays, too.
    gpus[1].remapped = (0, 0, 1, 0)
    machine = found_machine("auto", known=known)
    assert machine.devices == known.devices
    gpus[1].remapped = (0, 0, 0, 0)
    # Another GPU is in its place: it was replaced.
    library.all = [gpus[0], FakeGpu(uuid="GPU-NEW"), gpus[2]]
    assert found_machine("auto", known=known).devices == ["GPU-0000", "GPU-NEW", "GPU-0002"]
    # Who asks for something else than last time gets what is there now.
    library.all = [gpus[0], gpus[2]]
    assert found_machine("nvidia:0,1", known=known).devices == ["GPU-0000", "GPU-0002"]


def test_numbers_are_not_taken_for_those_of_gpus_that_have_moved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = _gpus(4)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([gpus[1], gpus[2], gpus[3]]))
    listed = {"CUDA_VISIBLE_DEVICES": "0,1"}
    for words, environment in (("nvidia:0,1", {}), ("auto", listed)):
        known = _known(gpus[:2], words, environment.get("CUDA_VISIBLE_DEVICES"))
        machine = found_machine(words, environment, known)
        assert machine.devices == ["GPU-0000", "GPU-0001"], "GPU 2 was never ours, whatever its number is now"


@pytest.mark.parametrize("plain", [None, [], ["auto"], [["nvidia", None], [["n", "h200", 2]], [], ["one"]], 7, {}])
def test_nonsense_about_known_gpus_is_nothing(plain: object) -> None:
    assert KnownGpus.of_plain(plain) is None


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "0", "5000", "٣", "9" * 20])
def test_other_numbers_of_gpus_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        found_machine(text)


def test_virtual_gpus_may_stand_for_gpus_of_several_types() -> None:
    machine = found_machine("v100:2,K80:3")
    assert machine.devices is None
    assert [(node.gpu_type, node.gpus) for node in machine.cluster.nodes] == [("v100", 2), ("k80", 3)]
    assert machine.cluster.types[0].speed > machine.cluster.types[1].speed
    assert machine.text == "2 × v100, 3 × k80 (virtual GPUs, on the CPU)"
    assert len(found_machine("a100:1").cluster.nodes) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("v100:", "'v100:' is not a GPU type with a number"),
        (":2", "':2' is not a GPU type with a number"),
        ("v100:0", "'v100:0' is not a GPU type"),
        ("v100:-1", "'v100:-1' is not a GPU type"),
        ("v100:1.5", "'v100:1.5' is not a GPU type"),
        ("v100:2,", "'' is not a GPU type"),
        ("v100:2,k80", "'k80' is not a GPU type"),
        ("v100:2,V100:1", "v100 is there twice"),
        ("toaster:2", "unknown GPU type 'toaster'"),
        ("v100:1000,k80:90000", "virtual GPUs, not 91000"),
    ],
)
def test_other_words_for_virtual_gpus_are_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        found_machine(text)
    assert "\n" not in str(refused.value)


def test_processes_of_others_are_seen_and_ours_are_not_taken_for_them() -> None:
    gpus = _gpus(4)
    child = subprocess.Popen(["sleep", "60"])
    try:
        gpus[1].pids = [child.pid]
        keepers: dict[int, set[int]] = {}
        sitters = ForeignProcesses(Nvml(FakeNvml(gpus)), [gpu.uuid for gpu in gpus], lambda: keepers)
        blocked = sitters.look()
        assert list(blocked) == [1]
        assert blocked[1].startswith(f"process {child.pid} (sleep) of ")
        # Below a keeper of ours it is ours, wherever that has its job.
        keepers[0] = {os.getpid()}
        assert sitters.look() == {}
    finally:
        child.kill()
        child.wait()
    keepers.clear()
    gpus[1].pids = []
    assert sitters.look() == {}


def test_a_process_outside_of_our_container_counts_only_where_none_of_ours_runs() -> None:
    gpus = _gpus(2)
    gpus[0].pids = gpus[1].pids = [4_000_000]
    sitters = ForeignProcesses(Nvml(FakeNvml(gpus)), [gpu.uuid for gpu in gpus], lambda: {0: {os.getpid()}})
    assert list(sitters.look()) == [1]


def test_gpus_that_break_are_blocked() -> None:
    gpus = _gpus(3)
    library = FakeNvml(gpus)
    sitters = ForeignProcesses(Nvml(library), [gpu.uuid for gpu in gpus], dict)
    assert sitters.look() == {}
    gpus[0].lost = True
    library.xids = [(gpus[1], 31), (gpus[2], 79)]
    blocked = sitters.look()
    assert sorted(blocked) == [0, 2]
    assert "GPU is lost" in blocked[0]
    assert "error 79" in blocked[2]
    gpus[0].lost = False
    assert sorted(sitters.look()) == [2], "a GPU that fell off the bus stays blocked; one that is back does not"


def test_a_driver_that_fails_blocks_all_gpus_and_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(_gpus(2))
    monkeypatch.setitem(sys.modules, "pynvml", library)
    nvml = found_machine("auto").nvml
    assert nvml is not None
    sitters = ForeignProcesses(nvml, [gpu.uuid for gpu in library.all], dict)
    assert sitters.look() == {}
    library.trouble = MISMATCH
    # Each time, the kernel writes a line into its log.
    assert set(sitters.look().values()) == {"the driver has lost it (Driver/library version mismatch)"}
    monkeypatch.setattr(machine_module, "AGAIN_S", 0.0)
    assert set(sitters.look().values()) == {nvml.trouble}
    assert nvml.trouble.startswith("NVML: Driver/library version mismatch; the driver was upgraded")
    assert sitters.look().keys() == {0, 1}
    assert library.opened == 0, "or the driver could not be unloaded"
    assert nvml.busy_percent("GPU-0000") is None
    library.trouble = None
    assert sitters.look() == {}
    assert (nvml.trouble, library.opened) == ("", 1)
    # What it reported before it was loaded again does not count any more.
    library.xids = [(library.all[0], 79)]
    assert list(sitters.look()) == [0]
    library.trouble = MISMATCH
    assert list(sitters.look()) == [0, 1]
    library.trouble = None
    assert sitters.look() == {}


def test_a_library_that_was_upgraded_while_it_was_in_use_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, maps = tmp_path / "libnvidia-ml.so.535.1", tmp_path / "maps"
    line = f"7f00-7f01 r-xp 00000000 08:01 1234                       {old}"
    maps.write_text(f"7e00-7e01 r-xp 00000000 08:01 99   /usr/lib/libc.so.6\n{line}\n")
    monkeypatch.setattr(machine_module, "LOADED_FILES", maps)
    monkeypatch.setattr(machine_module, "AGAIN_S", 0.0)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(_gpus(1)))
    sitters = ForeignProcesses(Nvml.opened(), ["GPU-0000"], dict)
    assert sitters.look() == {}
    maps.write_text(f"{line} (deleted)\n")
    for _ in range(2):
        assert sitters.look()[0].startswith("the driver was upgraded since the scheduler started: reboot, or")
    old.touch()
    assert sitters.look() == {}, "the same version was installed again"


_DRIVERS_LIBRARY = """
int nvmlInit_v2(void) { return CODE; }
int nvmlInitWithFlags(unsigned flags) { return CODE; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 0; return 0; }
const char *nvmlErrorString(int code) { return "Driver/library version mismatch"; }
"""

_UPGRADE = """
import pathlib, sys
from fairway.runtime.processes import machine
machine.AGAIN_S = 0.0
folder = pathlib.Path(sys.argv[1])
nvml = machine.Nvml.opened()
assert "the driver was upgraded: reboot" in nvml.trouble, nvml.trouble
assert not nvml.open_again(), "the library is still the same"
(folder / "libnvidia-ml.so.1").unlink()
(folder / "libnvidia-ml.so.1.old").unlink()
nvml.look_at_library()
assert nvml.trouble.startswith("the driver was upgraded since"), nvml.trouble
assert not nvml.open_again(), "there is no library"
(folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.1.new")
assert nvml.open_again(), nvml.trouble
nvml.look_at_library()
assert not nvml.trouble
"""


@pytest.mark.skipif(CC is None, reason="needs a C compiler")
def test_the_library_of_the_new_driver_is_used_without_a_restart(tmp_path: Path) -> None:
    for version, code in (("old", 18), ("new", 0)):
        source, library = tmp_path / f"{version}.c", tmp_path / f"libnvidia-ml.so.1.{version}"
        source.write_text(_DRIVERS_LIBRARY.replace("CODE", str(code)))
        words = [str(CC), "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(source)]
        subprocess.run(words, check=True)
    (tmp_path / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.1.old")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", _UPGRADE, str(tmp_path)], env=environment, check=True)


def test_device_files_are_known_once_the_driver_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(_gpus(2), trouble=MISMATCH)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetMinorNumber", lambda own, gpu: own.all.index(gpu), raising=False)
    monkeypatch.setattr(machine_module, "AGAIN_S", 0.0)
    nvml = Nvml.opened()
    assert nvml.device_numbers == {}
    library.trouble = None
    assert nvml.open_again()
    assert nvml.device_numbers == {"GPU-0000": (195, 0), "GPU-0001": (195, 1)}


def test_how_busy_gpus_are_is_told() -> None:
    gpus = _gpus(3)
    gpus[1].percent = 40
    sitters = ForeignProcesses(Nvml(FakeNvml(gpus)), [gpu.uuid for gpu in gpus], dict)
    assert sitters.busy_percent([0, 1]) == 40.0
    assert sitters.busy_percent([2]) == 0.0
    assert sitters.busy_percent([]) is None


def test_the_server_of_mps_is_no_foreign_process(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, "30"]) as server:
        gpus = [FakeGpu(pids=[server.pid])]
        assert ForeignProcesses(Nvml(FakeNvml(gpus)), ["GPU-0"], dict).look() == {}
        server.kill()
