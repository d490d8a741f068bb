import os
from pathlib import Path
from typing import get_args

import pytest

from allranks.engine.spec import Passthrough
from allranks.errors import UsageError
from allranks.schedule.inventory import GpuMode, chosen_gpus, take_inventory

GPUS = tuple(f"GPU-{number}" for number in range(4))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("0,2-3", (0, 2, 3)),
        ("GPU-1", (1,)),
        (" 3 , GPU-0 ,3", (3, 0)),
        ("1-1", (1,)),
        ("", ()),
    ],
)
def test_gpus_are_chosen_by_number_and_by_id(wanted, found):
    assert chosen_gpus(GPUS, wanted) == tuple(GPUS[number] for number in found)


@pytest.mark.parametrize("wanted", ["4", "3-4", "2-1", "GPU-9", "-1", "all"])
def test_a_gpu_that_is_not_there_is_refused(wanted):
    with pytest.raises(UsageError, match=f"There is no GPU {wanted} on this host") as caught:
        chosen_gpus(GPUS, f"0,{wanted}")
    assert "numbers 0 to 3" in caught.value.why


def test_of_no_gpus_none_can_be_chosen():
    with pytest.raises(UsageError, match="no GPU 0") as caught:
        chosen_gpus((), "0")
    assert "There are: none" in caught.value.why


def test_gpus_of_a_remote_daemon_come_from_the_environment():
    assert take_inventory(environ={"ALLRANKS_GPUS": " GPU-a, GPU-b ,"}).gpus == ("GPU-a", "GPU-b")


def test_an_empty_list_in_the_environment_means_none():
    assert take_inventory(environ={"ALLRANKS_GPUS": ""}).gpus == ()


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Put a stand-in for nvidia-smi first on the path."""

    def install(script: str) -> None:
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")

    return install


def test_gpus_of_this_host_come_from_the_driver(driver):
    driver("printf 'GPU-a\\nGPU-b\\n'")
    assert take_inventory(environ={}, root=Path("/nowhere")).gpus == ("GPU-a", "GPU-b")


def test_a_driver_that_does_not_answer_has_no_gpus(driver):
    driver("echo 'NVIDIA-SMI has failed'; exit 9")
    assert take_inventory(environ={}, root=Path("/nowhere")).gpus == ()


def test_no_driver_is_no_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert take_inventory(environ={}, root=Path("/nowhere")).gpus == ()


@pytest.fixture
def amd(tmp_path):
    """A host with a CPU and two GPUs of AMD's, as its kernel shows them."""
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    said = [
        "cpu_cores_count 8\nsimd_count 0\ndrm_render_minor 0\nunique_id 0\n",
        "cpu_cores_count 0\nsimd_count 416\ndrm_render_minor 129\nunique_id 11400714819323198485\n",
        "cpu_cores_count 0\nsimd_count 416\ndrm_render_minor 128\nunique_id 0\nmax_waves_per_simd 8\n",
    ]
    for number, text in enumerate(said):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(text)
    (nodes / "3").mkdir()  # one whose properties this user may not read
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128", "dri/renderD129"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


AMD = ("GPU-9e3779b97f4a7c15", "renderD128")


@pytest.mark.parametrize("mode", ["auto", "rocm"])
def test_gpus_of_amd_are_in_the_kernels_topology(amd, monkeypatch, mode):
    monkeypatch.setenv("PATH", str(amd))
    inventory = take_inventory(mode, {}, amd)
    assert (inventory.driver, inventory.gpus) == ("rocm", AMD)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other groups")
def test_containers_get_the_nodes_of_their_gpus_and_may_use_them(amd, monkeypatch):
    monkeypatch.setenv("PATH", str(amd))
    for name, group in (("kfd", 110), ("dri/renderD128", 44), ("dri/renderD129", 110)):
        os.chown(amd / "dev" / name, -1, group)
    inventory = take_inventory("auto", {}, amd)
    kfd, d128, d129 = "/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"
    assert inventory.of(AMD[:1]) == Passthrough(driver="rocm", nodes=(kfd, d129), groups=(110,), numbers=(0,))
    assert inventory.of(AMD[1:]) == Passthrough(driver="rocm", nodes=(kfd, d128), groups=(44, 110), numbers=(1,))
    assert inventory.of(AMD).nodes == (kfd, d129, d128)
    assert inventory.of(()) == Passthrough(driver="rocm")


def test_nvidias_come_first_where_there_are_both(driver, amd):
    driver("echo GPU-a")
    assert take_inventory("auto", {}, amd).gpus == ("GPU-a",)
    assert take_inventory("rocm", {}, amd).gpus == AMD
    assert take_inventory("none", {}, amd).gpus == ()


def test_the_mode_says_how_named_gpus_are_given(amd):
    for mode in get_args(GpuMode):
        inventory = take_inventory(mode, {"ALLRANKS_GPUS": "renderD128,x"}, amd)
        driver = {"auto": "nvidia", "none": "nvidia"}.get(mode, mode)
        assert (inventory.driver, inventory.gpus) == (driver, () if mode == "none" else ("renderD128", "x"))
    remote = take_inventory("rocm", {"ALLRANKS_GPUS": "renderD128,x"}, amd).of(("x",))
    assert (remote.nodes, remote.numbers) == (("/dev/kfd", "/dev/dri/x"), (1,))


def test_cdi_names_gpus_of_nvidia(driver, amd):
    driver("echo GPU-a")
    inventory = take_inventory("cdi", {}, amd)
    assert (inventory.driver, inventory.gpus) == ("cdi", ("GPU-a",))
    assert inventory.of(("GPU-a",)) == Passthrough(driver="cdi")
