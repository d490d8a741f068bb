import os
from pathlib import Path
from typing import get_args

import pynvml
import pytest
from fake_nvml import FakeNvml, device

from allranks.engines.base import Passthrough
from allranks.engines.gpus import GpuMode, chosen_gpus, take_inventory
from allranks.errors import DeviceError, UsageError

GPUS = tuple(f"GPU-{number}" for number in range(4))
ABSENT = FakeNvml([], init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0,2-3", (0, 2, 3)),
        ("GPU-1", (1,)),
        (" 3 , GPU-0 ,3", (3, 0)),
        ("1-1", (1,)),
        ("", ()),
    ],
)
def test_gpus_are_chosen_by_number_and_by_id(text, found):
    assert chosen_gpus(GPUS, text) == tuple(GPUS[number] for number in found)


@pytest.mark.parametrize("text", ["4", "3-4", "2-1", "GPU-9", "-1", "all"])
def test_an_unknown_gpu_is_rejected(text):
    with pytest.raises(UsageError, match=f"There is no GPU {text} on this host") as caught:
        chosen_gpus(GPUS, f"0,{text}")
    assert "The GPUs are: 0 (" in caught.value.why


def test_no_gpu_can_be_chosen_without_gpus():
    with pytest.raises(UsageError, match="no GPU 0") as caught:
        chosen_gpus((), "0")
    assert "The GPUs are: none" in caught.value.why


def test_gpus_of_a_remote_daemon_come_from_the_environment():
    assert take_inventory(environ={"ALLRANKS_GPUS": " GPU-a, GPU-b ,"}).gpus == ("GPU-a", "GPU-b")


def test_an_empty_list_in_the_environment_means_none():
    assert take_inventory(environ={"ALLRANKS_GPUS": ""}).gpus == ()


NOWHERE = Path("/nowhere")


def test_nvidias_gpus_come_from_nvml():
    inventory = take_inventory(environ={}, root=NOWHERE, nvml=FakeNvml([device("a"), device("b")]))
    assert (inventory.driver, inventory.gpus) == ("nvidia", ("GPU-a", "GPU-b"))
    assert inventory.name_of("GPU-b") == "GPU 1 (H100, 80 GiB, GPU-b)"
    assert inventory.only("1").name_of("GPU-b") == "GPU 1 (H100, 80 GiB, GPU-b)"
    assert inventory.name_of("GPU-x") == "GPU (GPU-x)"


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ("1", ("GPU-b2",)),
        ("2,0", ("GPU-b3", "GPU-a1")),
        ("GPU-b3, GPU-a", ("GPU-b3", "GPU-a1")),
        ("GPU-b", ()),
        ("0,7,1", ("GPU-a1",)),
        ("0,-1,1", ("GPU-a1",)),
        ("", ()),
        ("NoDevFiles", ()),
    ],
)
def test_hidden_nvidia_gpus_are_not_leased(shown, found):
    nvml = FakeNvml([device("a1"), device("b2"), device("b3")])
    inventory = take_inventory(environ={"CUDA_VISIBLE_DEVICES": shown}, root=NOWHERE, nvml=nvml)
    assert inventory.gpus == found
    assert inventory.name_of("GPU-b2") == "GPU 1 (H100, 80 GiB, GPU-b2)"
    if found:
        assert inventory.only("0").gpus == found[:1]


def test_a_failing_driver_is_an_error_rather_than_no_gpus():
    with pytest.raises(DeviceError):
        take_inventory(environ={}, root=NOWHERE, nvml=FakeNvml([], init=999))


def test_a_card_without_a_loaded_driver_is_an_error(tmp_path):
    nvml = FakeNvml([], init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    assert take_inventory(environ={}, root=tmp_path, nvml=nvml).gpus == ()
    card = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    with pytest.raises(DeviceError, match="cannot be initialized"):
        take_inventory(environ={}, root=tmp_path, nvml=nvml)


@pytest.fixture
def amd(tmp_path):
    """The kernel's topology of a host with a CPU and two AMD GPUs."""
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    lines = [
        "cpu_cores_count 8\nsimd_count 0\ndrm_render_minor 0\nunique_id 0\n",
        "cpu_cores_count 0\nsimd_count 416\ndrm_render_minor 129\nunique_id 11400714819323198485\n",
        "cpu_cores_count 0\nsimd_count 416\ndrm_render_minor 128\nunique_id 0\nmax_waves_per_simd 8\n",
    ]
    for number, text in enumerate(lines):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(text)
    (nodes / "3").mkdir()  # its properties are not readable for this user
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128", "dri/renderD129"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


AMD = ("GPU-9e3779b97f4a7c15", "renderD128")


@pytest.mark.parametrize("mode", ["auto", "rocm"])
def test_amds_gpus_come_from_the_kernels_topology(amd, mode):
    inventory = take_inventory(mode, {}, amd, ABSENT)
    assert (inventory.driver, inventory.gpus) == ("rocm", AMD)


@pytest.mark.root
def test_containers_get_the_device_nodes_of_their_gpus(amd):
    for name, group in (("kfd", 110), ("dri/renderD128", 44), ("dri/renderD129", 110)):
        os.chown(amd / "dev" / name, -1, group)
    inventory = take_inventory("auto", {}, amd, ABSENT)
    kfd, d128, d129 = "/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"
    assert inventory.of(AMD[:1]) == Passthrough(driver="rocm", nodes=(kfd, d129), groups=(110,), numbers=(0,))
    assert inventory.of(AMD[1:]) == Passthrough(driver="rocm", nodes=(kfd, d128), groups=(44, 110), numbers=(1,))
    assert inventory.of(AMD).nodes == (kfd, d129, d128)
    assert inventory.of(()) == Passthrough(driver="rocm")


def test_nvidias_gpus_are_preferred(amd):
    assert take_inventory("auto", {}, amd, FakeNvml([device("a")])).gpus == ("GPU-a",)
    assert take_inventory("rocm", {}, amd).gpus == AMD
    assert take_inventory("none", {}, amd).gpus == ()


def test_the_mode_determines_how_named_gpus_are_passed(amd):
    for mode in get_args(GpuMode):
        inventory = take_inventory(mode, {"ALLRANKS_GPUS": "renderD128,x"}, amd)
        driver = {"auto": "nvidia", "none": "nvidia"}.get(mode, mode)
        assert (inventory.driver, inventory.gpus) == (driver, () if mode == "none" else ("renderD128", "x"))
    remote = take_inventory("rocm", {"ALLRANKS_GPUS": "renderD128,x"}, amd).of(("x",))
    assert (remote.nodes, remote.numbers) == (("/dev/kfd", "/dev/dri/x"), (1,))


def test_cdi_device_names_of_nvidia(amd):
    inventory = take_inventory("cdi", {}, amd, FakeNvml([device("a")]))
    assert (inventory.driver, inventory.gpus) == ("cdi", ("GPU-a",))
    assert inventory.of(("GPU-a",)) == Passthrough(driver="cdi")


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": "1,2", "SLURM_JOB_ID": "7"}, ("GPU-b3",)),
        ({"SLURM_JOB_GPUS": "1,2", "SLURM_JOB_ID": "7"}, ("GPU-b2", "GPU-b3")),
        ({"SLURM_STEP_GPUS": "2", "CUDA_VISIBLE_DEVICES": "0"}, ("GPU-a1",)),  # device cgroups renumber from 0
        ({"SLURM_STEP_GPUS": "2", "CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"SLURM_JOB_ID": "7"}, ()),
    ],
    ids=str,
)
def test_slurm_jobs_use_the_gpus_that_slurm_allocated(environ, found):
    nvml = FakeNvml([device("a1"), device("b2"), device("b3")])
    assert take_inventory(environ=environ, root=NOWHERE, nvml=nvml).gpus == found


@pytest.mark.parametrize(
    ("environ", "found", "number"),
    [
        ({"HIP_VISIBLE_DEVICES": "1"}, AMD[1:], 1),
        ({"CUDA_VISIBLE_DEVICES": "1"}, AMD[1:], 1),
        (
            {"ROCR_VISIBLE_DEVICES": "1", "SLURM_JOB_ID": "7"},
            AMD[1:],
            0,
        ),  # HIP counts the visible GPUs of ROCr
        ({"ROCR_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "1"}, AMD[1:], 0),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0"}, AMD[1:], 0),
        ({"HIP_VISIBLE_DEVICES": ""}, (), None),
        ({"SLURM_JOB_ID": "7"}, (), None),
    ],
    ids=str,
)
def test_hidden_amd_gpus_are_not_leased(amd, environ, found, number):
    inventory = take_inventory("rocm", environ, amd)
    assert inventory.gpus == found
    assert inventory.of(found).numbers == (() if number is None else (number,))
