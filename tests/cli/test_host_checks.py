"""``allranks doctor`` on fake hosts, which consist of a few files and of a daemon's information."""

import socket
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from allranks.cli import host_checks
from allranks.cli.host_checks import check_folders, check_gpus, check_host
from allranks.engines import process
from allranks.engines.base import Finding, Leftovers
from allranks.engines.docker import check_daemon, check_image_space
from allranks.engines.gpus import Inventory
from allranks.engines.process import ProcessEngine
from allranks.errors import DeviceError, EngineError

pytestmark = pytest.mark.usefixtures("quick_doctor")

NOW = datetime(2026, 11, 22, 1, 6, 41, tzinfo=UTC).timestamp()
HEALTHY = {
    "ServerVersion": "28.3.1",
    "NCPU": 8,
    "MemoryLimit": True,
    "SwapLimit": True,
    "PidsLimit": True,
    "CgroupVersion": "2",
    "SystemTime": "2026-11-22T01:06:41.123456789Z",
    "Runtimes": {"nvidia": {}, "runc": {}},
    "CDISpecDirs": ["/nowhere"],
    "DockerRootDir": "/nowhere",
}
NVIDIA, CDI = Inventory(gpus=("GPU-a",)), Inventory(driver="cdi", gpus=("GPU-a",))


def problems(findings):
    return {finding.subject: finding for finding in findings if finding.remedy}


def test_a_healthy_host_has_no_problems(tmp_path):
    assert not problems(check_gpus(NVIDIA, tmp_path))
    assert not problems(check_daemon(HEALTHY, NVIDIA, NOW))
    assert not problems(check_daemon(HEALTHY, Inventory(), NOW))


def test_a_driver_without_a_gpu_is_a_problem(tmp_path):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    assert "(NVML) reports no GPU" in problems(check_gpus(Inventory(), tmp_path))["GPUs"].text


@pytest.mark.usefixtures("locks")
def test_a_failing_driver_is_a_problem_and_the_rest_is_checked(tmp_path, monkeypatch):
    def fail(_mode):
        msg = "NVML cannot."
        raise DeviceError(msg, why="It says: lost.", remedy="Restart.")

    monkeypatch.setattr(host_checks, "take_inventory", fail)
    found = list(check_host("process", "auto", tmp_path))
    assert problems(found)["GPUs"] == Finding("GPUs", "NVML cannot. It says: lost.", "Restart.")
    assert {"results", "docker"} <= {finding.subject for finding in found}


def test_a_card_without_a_driver_is_a_problem_and_named(tmp_path):
    for address, vendor, kind in (("0000:01:00.0", "0x10de", "0x030200"), ("0000:02:00.0", "0x8086", "0x030000")):
        device = tmp_path / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    (tmp_path / "sys/bus/pci/devices/0000:03:00.0").mkdir()
    [problem] = problems(check_gpus(Inventory(), tmp_path)).values()
    assert "(0000:01:00.0), but no driver" in problem.text
    assert "Install NVIDIA's driver" in problem.remedy


def test_a_host_without_cards_has_no_problem(tmp_path):
    assert [finding.text for finding in check_gpus(Inventory(), tmp_path)] == ["none: tests that need GPUs are skipped"]


def test_device_nodes_that_this_user_may_not_use_are_named(tmp_path):
    inventory = Inventory(driver="rocm", gpus=("renderD128",), root=tmp_path)
    problem = problems(check_gpus(inventory, tmp_path))["groups"]
    assert problem.text == "this user may not use /dev/kfd, /dev/dri/renderD128"
    assert "usermod -aG render,video" in problem.remedy


@pytest.mark.parametrize(
    ("info", "inventory", "subject", "remedy"),
    [
        ({"Runtimes": {"runc": {}}}, NVIDIA, "toolkit", "nvidia-ctk runtime configure"),
        ({"ServerVersion": "20.10.24+dfsg1"}, CDI, "CDI", "Install Docker 25"),
        ({}, CDI, "CDI", "nvidia-ctk cdi generate"),
        ({"CDISpecDirs": None}, CDI, "CDI", "nvidia-ctk cdi generate"),
        ({"SwapLimit": False, "CgroupVersion": "1"}, NVIDIA, "cgroups", "swapaccount=1"),
        ({"SystemTime": "2026-11-22T01:07:41.123456789Z"}, NVIDIA, "clock", "set-ntp"),
    ],
)
def test_each_problem_of_a_daemon_has_a_remedy(monkeypatch, info, inventory, subject, remedy):
    monkeypatch.setenv("PATH", "/nowhere")
    [problem] = problems(check_daemon({**HEALTHY, **info}, inventory, NOW)).values()
    assert problem.subject == subject
    assert remedy in problem.remedy


def test_a_cdi_specification_is_found(tmp_path):
    (tmp_path / "nvidia.yaml").touch()
    assert not problems(check_daemon({**HEALTHY, "CDISpecDirs": [str(tmp_path)]}, CDI, NOW))


@pytest.mark.parametrize("info", ["", "yesterday", "2026-11-22T09:00:00+08:00"])
def test_an_invalid_time_of_a_daemon_is_ignored(info):
    assert "clock" not in [finding.subject for finding in check_daemon({**HEALTHY, "SystemTime": info}, NVIDIA, NOW)]


def test_a_nearly_full_disk_of_images_or_results_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 30))
    assert not problems(check_folders(tmp_path / "not/yet", tmp_path))
    assert not problems(check_image_space(tmp_path, Inventory()))
    assert "Free 24 GiB" in problems(check_image_space(tmp_path, NVIDIA))["images"].remedy
    assert not list(check_image_space(None, NVIDIA))
    monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    found = problems(check_folders(tmp_path / "not/yet", tmp_path))
    assert set(found) == {"results", "cache", "shared memory"}
    assert "remount" in found["shared memory"].remedy


@pytest.fixture
def dead_run(monkeypatch):
    """A dead run that left a process behind."""
    monkeypatch.setattr(ProcessEngine, "clean_up", lambda _, *, is_dry_run: Leftovers(["process 7"] * is_dry_run))
    monkeypatch.setattr(process.socket, "getnameinfo", lambda *_: None)  # DNS may be slow here


@pytest.mark.usefixtures("locks", "dead_run")
def test_leftovers_of_dead_runs_are_named(tmp_path):
    found = problems(check_host("process", "none", tmp_path))
    assert found == {"leftovers": Finding("leftovers", "process 7 belongs to a dead run", "Run: allranks clean")}


@pytest.mark.usefixtures("locks", "dead_run")
def test_leftovers_that_cannot_be_listed_are_a_problem(tmp_path, monkeypatch):
    def fail(_self, **_how):
        msg = "Could not be listed."
        raise EngineError(msg, why="Because.", remedy="Look.")

    monkeypatch.setattr(ProcessEngine, "clean_up", fail)
    assert problems(check_host("process", "none", tmp_path))["leftovers"].remedy == "Look."


@pytest.mark.usefixtures("locks")
def test_an_unreachable_requested_daemon_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "start one" in problems(check_host("docker", "none", tmp_path))["docker"].remedy
    assert "docker" not in problems(check_host("process", "none", tmp_path))


@pytest.mark.docker
def test_this_machines_process_engine_has_no_problems(tmp_path):
    found = list(check_host("docker", "none", tmp_path))
    assert {"Docker", "cgroups", "clock", "leftovers"} <= {finding.subject for finding in found}
    assert not problems(finding for finding in found if finding.subject in {"Docker", "clock"})


def test_a_folder_that_is_not_writable_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(host_checks.os, "access", lambda path, _: path != tmp_path)  # root may write to any folder
    assert "not writable" in problems(check_folders(tmp_path))["results"].text


@pytest.mark.parametrize(("seconds", "remedies"), [(0.001, 0), (5.0, 1)])
def test_a_slow_lookup_of_this_hosts_name_is_a_problem(monkeypatch, seconds, remedies):
    clock = iter((100.0, 100.0 + seconds))
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    found = problems(ProcessEngine().check(Inventory()))
    assert len(found) == remedies
    assert all("/etc/hosts: ::ffff:127.0.0.1 localhost" in finding.remedy for finding in found.values())


def test_an_engine_that_does_not_answer_is_a_problem_in_time(tmp_path, monkeypatch):
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(path))
        daemon.listen()  # it accepts connections and never answers
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        monkeypatch.setattr(host_checks, "ENGINE_LIMIT", 0.5)
        found = problems(check_host("docker", "none", tmp_path))
    assert found["docker"].text == "no answer within 0.5 s"


@pytest.mark.usefixtures("locks")
def test_the_checks_that_every_user_needs_come_first(tmp_path):
    subjects = [finding.subject for finding in check_host("process", "none", tmp_path)]
    expected = ["Python", "torch", "names", "results", "shared memory", "docker", "GPUs"]
    assert [subject for subject in subjects if subject in expected] == expected
