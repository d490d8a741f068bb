"""GPUs that the driver reports to be sick, and those that did not compute: who refuses them, and how that ends."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from allranks.cli.host_checks import examine_gpus
from allranks.engines.gpus import Inventory
from allranks.errors import DeviceError, ExitCode
from allranks.runner.run_jobs import _refuse_sick_gpus
from allranks.runner.sick_gpus import quarantined, report_failures, report_successes, sick_gpus

GPUS = Inventory(gpus=("GPU-a", "GPU-b"), everything=("GPU-a", "GPU-b"), descriptions={"GPU-b": "H100, 80 GiB"})


pytestmark = pytest.mark.usefixtures("locks")


@pytest.fixture
def quarantine(locks):  # noqa: ARG001 - they are to be the test's own
    for run in ("r1", "r2"):
        report_failures(run, {"GPU-b": "3 of the numbers are wrong"})


def test_one_run_puts_no_gpu_into_quarantine_however_often_it_fails_there():
    for _ in range(3):
        report_failures("r1", {"GPU-b": "it was busy"})
    assert quarantined(GPUS.gpus) == {}


@pytest.mark.usefixtures("quarantine")
def test_two_runs_do_until_the_named_file_is_removed():
    [(gpu, why)] = quarantined(GPUS.gpus).items()
    assert (gpu, "runs r1 and r2 (3 of the numbers are wrong)" in why) == ("GPU-b", True)
    command, path = why.split("`")[1].split()
    assert command == "rm"
    Path(path).unlink()
    assert quarantined(GPUS.gpus) == {}


def test_a_success_between_two_failures_counts():
    report_failures("r1", {"GPU-b": "x"})
    report_successes(["GPU-a", "GPU-b"])
    report_failures("r2", {"GPU-b": "x"})
    assert quarantined(GPUS.gpus) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"runs": 1, "why": ""}'])
def test_a_file_that_says_nothing_is_no_quarantine(locks, text):
    (locks / "sick-GPU-b").write_text(text)
    assert quarantined(GPUS.gpus) == {}


def test_what_the_driver_reports_needs_no_second_time():
    assert sick_gpus(Inventory(gpus=("GPU-a",), faults={"GPU-a": "lost", "GPU-hidden": "lost"})) == {"GPU-a": "lost"}


@pytest.mark.usefixtures("quarantine")
def test_the_doctor_names_it_and_the_way_out(tmp_path):
    [problem] = [found for found in examine_gpus(GPUS, tmp_path) if found.remedy]
    assert problem.text.startswith("GPU 1 (H100, 80 GiB, GPU-b) is sick: it did not compute in the runs r1 and r2")
    assert "`rm /" in problem.text


def job(gpus):
    return SimpleNamespace(cell=SimpleNamespace(gpu_count=gpus))


@pytest.mark.usefixtures("quarantine")
def test_a_machine_with_a_sick_gpu_takes_no_jobs_with_gpus_and_is_named(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-host-7")
    with pytest.raises(DeviceError, match=r"^This machine \(gpu-host-7\) takes no jobs with GPUs: GPU 1 ") as caught:
        _refuse_sick_gpus(GPUS, [job(0), job(1)])
    assert caught.value.exit_code is ExitCode.INFRASTRUCTURE
    _refuse_sick_gpus(GPUS.only("0"), [job(0), job(1)])
    _refuse_sick_gpus(GPUS, [job(0)])
