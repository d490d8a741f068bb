"""GPUs that are unhealthy according to the driver, or in quarantine after failed checks."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from allranks.cli.host_checks import check_gpus
from allranks.engines.gpus import Inventory
from allranks.errors import DeviceError, ExitCode
from allranks.runner.run_jobs import _reject_unhealthy_gpus
from allranks.runner.unhealthy_gpus import quarantined, report_failures, report_successes, unhealthy_gpus

GPUS = Inventory(gpus=("GPU-a", "GPU-b"), everything=("GPU-a", "GPU-b"), descriptions={"GPU-b": "H100, 80 GiB"})


pytestmark = pytest.mark.usefixtures("locks")


@pytest.fixture
def quarantine(locks):  # noqa: ARG001 - they are to be the test's own
    for run in ("r1", "r2"):
        report_failures(run, {"GPU-b": "3 of the numbers are wrong"})


def test_failures_of_a_single_run_do_not_quarantine_a_gpu():
    for _ in range(3):
        report_failures("r1", {"GPU-b": "it was busy"})
    assert quarantined(GPUS.gpus) == {}


@pytest.mark.usefixtures("quarantine")
def test_failures_of_two_runs_quarantine_a_gpu_until_the_file_is_removed():
    [(gpu, why)] = quarantined(GPUS.gpus).items()
    assert (gpu, "runs r1 and r2 (3 of the numbers are wrong)" in why) == ("GPU-b", True)
    command, path = why.split("`")[1].split()
    assert command == "rm"
    Path(path).unlink()
    assert quarantined(GPUS.gpus) == {}


def test_a_success_between_two_failures_prevents_quarantine():
    report_failures("r1", {"GPU-b": "x"})
    report_successes(["GPU-a", "GPU-b"])
    report_failures("r2", {"GPU-b": "x"})
    assert quarantined(GPUS.gpus) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"runs": 1, "why": ""}'])
def test_an_invalid_file_is_no_quarantine(locks, text):
    (locks / "unhealthy-GPU-b").write_text(text)
    assert quarantined(GPUS.gpus) == {}


def test_a_gpu_that_the_driver_reports_is_unhealthy_at_once():
    assert unhealthy_gpus(Inventory(gpus=("GPU-a",), faults={"GPU-a": "lost", "GPU-hidden": "lost"})) == {
        "GPU-a": "lost"
    }


@pytest.mark.usefixtures("quarantine")
def test_the_doctor_names_the_gpu_and_the_remedy(tmp_path):
    [problem] = [found for found in check_gpus(GPUS, tmp_path) if found.remedy]
    assert problem.text.startswith(
        "GPU 1 (H100, 80 GiB, GPU-b) is unhealthy: it failed the check in the runs r1 and r2"
    )
    assert "`rm /" in problem.text


def job(gpus):
    return SimpleNamespace(cell=SimpleNamespace(gpu_count=gpus))


@pytest.mark.usefixtures("quarantine")
def test_a_machine_with_an_unhealthy_gpu_rejects_jobs_with_gpus(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-host-7")
    with pytest.raises(DeviceError, match=r"^This machine \(gpu-host-7\) cannot run jobs with GPUs: GPU 1 ") as caught:
        _reject_unhealthy_gpus(GPUS, [job(0), job(1)])
    assert caught.value.exit_code is ExitCode.INFRASTRUCTURE
    _reject_unhealthy_gpus(GPUS.only("0"), [job(0), job(1)])
    _reject_unhealthy_gpus(GPUS, [job(0)])
