"""What the doctor says of hosts that are made of a few files and of what a daemon would say."""

import socket
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from allranks.cli import host_checks
from allranks.cli.host_checks import examine, examine_folders, examine_gpus
from allranks.engines import process
from allranks.engines.base import Finding, Leftovers
from allranks.engines.docker import check_daemon, check_image_space
from allranks.engines.gpus import Inventory
from allranks.engines.process import ProcessEngine
from allranks.errors import DeviceError, EngineError

NOW = datetime(2026, 11, 22, 1, 6, 41, tzinfo=UTC).timestamp()
WELL = {
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


def test_a_host_where_all_is_well_has_no_problem(tmp_path):
    assert not problems(examine_gpus(NVIDIA, tmp_path))
    assert not problems(check_daemon(WELL, NVIDIA, NOW))
    assert not problems(check_daemon(WELL, Inventory(), NOW))


def test_a_driver_without_a_gpu_is_a_problem(tmp_path):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    assert "(NVML) reports no GPU" in problems(examine_gpus(Inventory(), tmp_path))["GPUs"].text


@pytest.mark.usefixtures("locks")
def test_a_driver_that_does_not_answer_is_a_problem_and_the_rest_is_looked_at(tmp_path, monkeypatch):
    def fail(_mode):
        msg = "NVML cannot."
        raise DeviceError(msg, why="It says: lost.", remedy="Restart.")

    monkeypatch.setattr(host_checks, "take_inventory", fail)
    found = list(examine("process", "auto", tmp_path))
    assert problems(found)["GPUs"] == Finding("GPUs", "NVML cannot. It says: lost.", "Restart.")
    assert {"results", "docker"} <= {finding.subject for finding in found}


def test_a_card_without_a_driver_is_a_problem_and_named(tmp_path):
    for address, vendor, kind in (("0000:01:00.0", "0x10de", "0x030200"), ("0000:02:00.0", "0x8086", "0x030000")):
        device = tmp_path / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    (tmp_path / "sys/bus/pci/devices/0000:03:00.0").mkdir()
    [problem] = problems(examine_gpus(Inventory(), tmp_path)).values()
    assert "(0000:01:00.0), but no driver" in problem.text
    assert "Install NVIDIA's driver" in problem.remedy


def test_a_host_without_cards_has_no_problem(tmp_path):
    assert [finding.text for finding in examine_gpus(Inventory(), tmp_path)] == [
        "none: tests that need some are skipped"
    ]


def test_device_nodes_that_this_user_may_not_use_are_named(tmp_path):
    inventory = Inventory(driver="rocm", gpus=("renderD128",), root=tmp_path)
    problem = problems(examine_gpus(inventory, tmp_path))["groups"]
    assert problem.text == "this user may not use /dev/kfd, /dev/dri/renderD128"
    assert "usermod -aG render,video" in problem.remedy


@pytest.mark.parametrize(
    ("said", "inventory", "subject", "remedy"),
    [
        ({"Runtimes": {"runc": {}}}, NVIDIA, "toolkit", "nvidia-ctk runtime configure"),
        ({"ServerVersion": "20.10.24+dfsg1"}, CDI, "CDI", "Install Docker 25"),
        ({}, CDI, "CDI", "nvidia-ctk cdi generate"),
        ({"CDISpecDirs": None}, CDI, "CDI", "nvidia-ctk cdi generate"),
        ({"SwapLimit": False, "CgroupVersion": "1"}, NVIDIA, "cgroups", "swapaccount=1"),
        ({"SystemTime": "2026-11-22T01:07:41.123456789Z"}, NVIDIA, "clock", "set-ntp"),
    ],
)
def test_what_a_daemon_lacks_is_told_with_the_one_thing_to_do(monkeypatch, said, inventory, subject, remedy):
    monkeypatch.setenv("PATH", "/nowhere")
    [problem] = problems(check_daemon({**WELL, **said}, inventory, NOW)).values()
    assert problem.subject == subject
    assert remedy in problem.remedy


def test_a_cdi_specification_is_found(tmp_path):
    (tmp_path / "nvidia.yaml").touch()
    assert not problems(check_daemon({**WELL, "CDISpecDirs": [str(tmp_path)]}, CDI, NOW))


@pytest.mark.parametrize("said", ["", "yesterday", "2026-11-22T09:00:00+08:00"])
def test_a_daemon_whose_time_is_no_utc_says_nothing_of_clocks(said):
    assert "clock" not in [finding.subject for finding in check_daemon({**WELL, "SystemTime": said}, NVIDIA, NOW)]


def test_a_disk_that_is_nearly_full_is_a_problem_where_images_and_results_are(tmp_path, monkeypatch):
    monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 30))
    assert not problems(examine_folders(tmp_path / "not/yet", tmp_path))
    assert not problems(check_image_space(tmp_path, Inventory()))
    assert "Free 24 GiB" in problems(check_image_space(tmp_path, NVIDIA))["images"].remedy
    assert not list(check_image_space(None, NVIDIA))
    monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    found = problems(examine_folders(tmp_path / "not/yet", tmp_path))
    assert set(found) == {"results", "cache", "shared memory"}
    assert "remount" in found["shared memory"].remedy


@pytest.fixture
def dead_run(monkeypatch):
    """A run that is dead and has left a process."""
    monkeypatch.setattr(ProcessEngine, "clean_up", lambda _, *, is_dry_run: Leftovers(["process 7"] * is_dry_run))
    monkeypatch.setattr(process.socket, "getnameinfo", lambda *_: None)  # DNS may be slow here


@pytest.mark.usefixtures("locks", "dead_run")
def test_what_a_dead_run_has_left_is_named(tmp_path):
    found = problems(examine("process", "none", tmp_path))
    assert found == {"leftovers": Finding("leftovers", "process 7 belongs to a dead run", "Run: allranks clean")}


@pytest.mark.usefixtures("locks", "dead_run")
def test_remains_that_nobody_can_list_are_a_problem(tmp_path, monkeypatch):
    def fail(_self, **_how):
        msg = "Could not be listed."
        raise EngineError(msg, why="Because.", remedy="Look.")

    monkeypatch.setattr(ProcessEngine, "clean_up", fail)
    assert problems(examine("process", "none", tmp_path))["leftovers"].remedy == "Look."


@pytest.mark.usefixtures("locks")
def test_a_daemon_that_was_asked_for_and_does_not_answer_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "start one" in problems(examine("docker", "none", tmp_path))["docker"].remedy
    assert "docker" not in problems(examine("process", "none", tmp_path))


@pytest.mark.docker
def test_this_machines_engine_is_well(tmp_path):
    found = list(examine("docker", "none", tmp_path))
    assert {"Docker", "cgroups", "clock", "leftovers"} <= {finding.subject for finding in found}
    assert not problems(finding for finding in found if finding.subject in {"Docker", "clock"})


def test_a_folder_that_is_not_writable_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(host_checks.os, "access", lambda path, _: path != tmp_path)  # root may write everywhere
    assert "not writable" in problems(examine_folders(tmp_path))["results"].text


@pytest.mark.parametrize(("seconds", "remedies"), [(0.001, 0), (5.0, 1)])
def test_a_slow_lookup_of_the_name_of_this_host_is_a_problem(monkeypatch, seconds, remedies):
    clock = iter((100.0, 100.0 + seconds))
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    found = problems(ProcessEngine().check(Inventory()))
    assert len(found) == remedies
    assert all("/etc/hosts: ::ffff:127.0.0.1 localhost" in each.remedy for each in found.values())


def test_an_engine_that_does_not_answer_is_a_problem_in_time(tmp_path, monkeypatch):
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(path))
        daemon.listen()  # it accepts a connection and never answers
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        monkeypatch.setattr(host_checks, "ENGINE_LIMIT", 0.5)
        found = problems(examine("docker", "none", tmp_path))
    assert found["docker"].text == "no answer within 0.5 s"


@pytest.mark.usefixtures("locks")
def test_the_checks_that_every_user_needs_come_first(tmp_path):
    subjects = [finding.subject for finding in examine("process", "none", tmp_path)]
    wanted = ["Python", "torch", "names", "results", "shared memory", "docker", "GPUs"]
    assert [subject for subject in subjects if subject in wanted] == wanted
