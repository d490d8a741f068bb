import shutil
import zipfile
from types import SimpleNamespace

import pytest

from allranks.errors import ExitCode, ImageError
from allranks.images.builders import build_with_buildkit, build_with_sdk, check_space, images_folder, space_for

MB = 1_000_000
LOCAL = "http+docker://localhost"


@pytest.fixture
def wheel(tmp_path):
    """A small wheel that unpacks to 11 MB, of which 1 MB is source."""
    path = tmp_path / "torch-2.14.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("torch/lib.so", bytes(10 * MB))
        archive.writestr("torch/__init__.py", b" " * MB)
    return path


@pytest.fixture
def disk(monkeypatch, daemon, tmp_path):
    """``disk(free=...)``: set the free space of the daemon's disk."""
    daemon.root = str(tmp_path)

    def set_free(free):
        monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=free))

    return set_free


def test_room_is_what_the_wheels_unpack_to_with_their_bytecode(wheel):
    assert space_for([wheel], build_with_sdk).permanent == 10 * MB + MB + 1.5 * MB
    assert space_for([wheel, wheel], build_with_sdk).permanent == 2 * 12.5 * MB


def test_the_legacy_builder_takes_more_meanwhile(wheel):
    size = wheel.stat().st_size
    assert space_for([wheel], build_with_sdk).temporary == 2 * size + 3 * 12.5 * MB
    assert space_for([wheel], build_with_buildkit).temporary == size + 2 * 12.5 * MB


def test_too_little_room_is_an_error_of_the_infrastructure_with_both_numbers(disk, daemon, wheel):
    disk(free=37_000_000)
    with pytest.raises(ImageError) as error:
        check_space(daemon, "torch", [wheel] * 1000, build_with_sdk)
    assert error.value.exit_code == ExitCode.INFRASTRUCTURE
    assert "37.5 GB" in error.value.why
    assert "the result 12.5 GB" in error.value.why
    assert f"{daemon.root} has only 0.0 GB" in error.value.why
    assert "allranks clean --images" in error.value.remedy


def test_enough_room_is_no_error(disk, daemon, wheel):
    disk(free=40 * MB)
    check_space(daemon, "torch", [wheel], build_with_sdk)
    disk(free=37 * MB)
    with pytest.raises(ImageError):
        check_space(daemon, "torch", [wheel], build_with_sdk)


def test_disk_space_of_another_host_is_not_checked(disk, daemon, wheel):
    disk(free=0)
    daemon.root = "/of/another/host"
    check_space(daemon, "torch", [wheel], build_with_sdk)


@pytest.mark.parametrize(
    ("root", "address", "is_here"),
    [
        (None, LOCAL, True),
        (None, "https://10.0.0.1:2376", False),
        (None, "http+docker://ssh", False),
        ("", LOCAL, False),
    ],
)
def test_only_a_daemon_of_this_host_keeps_its_images_here(tmp_path, root, address, is_here):
    info = {"DockerRootDir": str(tmp_path) if root is None else root}
    assert images_folder(info, address) == (tmp_path if is_here else None)


@pytest.mark.parametrize(
    ("folders", "holder"),
    [
        (("docker", "containerd"), "containerd"),
        (("docker/containerd", "containerd"), "docker/containerd"),
        (("docker",), "docker"),
    ],
)
def test_images_that_are_in_containerd_are_looked_for_there(tmp_path, folders, holder):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    info = {
        "DockerRootDir": str(tmp_path / "docker"),
        "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    }
    assert images_folder(info, LOCAL, tmp_path / "containerd") == tmp_path / holder
    info["DriverStatus"] = [["Backing Filesystem", "extfs"]]
    assert images_folder(info, LOCAL, tmp_path / "containerd") == tmp_path / "docker"
