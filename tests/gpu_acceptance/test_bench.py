"""What counts as proved by a run's report, and what does not."""

import time
import tomllib

import pytest

from allranks.errors import UsageError
from gpu_acceptance.__main__ import _exit_code, _lease, _why_not
from gpu_acceptance.bench import SUITES, Bench
from gpu_acceptance.command import Run
from gpu_acceptance.junit import Case, read_cases
from gpu_acceptance.machine import Gpu, Machine
from gpu_acceptance.matrix_file import Cells, Suite, matrix_file
from gpu_acceptance.out_folder import OutFolder
from gpu_acceptance.parts import PARTS
from gpu_acceptance.parts.cells import _BASICS
from gpu_acceptance.parts.faults import recordings_of
from gpu_acceptance.verdict import ImpossibleError, Verdict, WrongError

CELLS = Cells(backend="nccl", world_sizes=(1, 2), gpus=2, init_methods=("env",))
GPU = Gpu(uuid="GPU-a", name="H100", memory_mib=81920)
REFUSAL = "ncclInvalidUsage\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000\nmore"


@pytest.fixture
def bench(tmp_path):
    machine = Machine(python="3.12", torch="2.11.0+cu130", nccl="2.28.9", gpus=(GPU,), pretended=False)
    return Bench(machine=machine, folder=tmp_path, deadline=time.monotonic() + 60)


def case(size, **about):
    facts = {"cell": f"nccl-w{size}-g2-env", "gpus": ("GPU-a",), "name": "test_a", "verdict": ("passed", "")}
    facts |= {"leading": None, "ranks": dict.fromkeys(range(size), "passed"), "message": "", "text": "", "seconds": 0.1}
    return Case(**facts | about)


def run(tmp_path, *cases, code=0):
    return Run(code=code, output="", cases=cases, seconds=1.0, results=tmp_path)


def test_tests_that_passed_on_every_rank_of_every_cell_are_enough(bench, tmp_path):
    bench.expect_passes(run(tmp_path, case(1), case(2)), CELLS, ["test_a"])
    assert bench.checks > 2


@pytest.mark.parametrize(
    "cases",
    [
        [],
        [case(1)],
        [case(1), case(2, name="test_b")],
        [case(1), case(2, verdict=("skipped", "pytest.skip"))],
        [case(1), case(2, ranks={0: "passed"})],
        [case(1), case(2, ranks={0: "passed", 1: "skipped"})],
        [case(1), case(2, cell="gloo-w2-g2-env")],
    ],
)
def test_a_test_that_is_absent_or_has_not_passed_somewhere_is_not_enough(bench, tmp_path, cases):
    with pytest.raises(WrongError):
        bench.expect_passes(run(tmp_path, *cases), CELLS, ["test_a"])


def test_another_exit_code_or_no_test_at_all_is_not_enough(bench, tmp_path):
    with pytest.raises(WrongError, match="exit code 1"):
        bench.expect_passes(run(tmp_path, case(1), case(2), code=1), CELLS, ["test_a"])
    with pytest.raises(WrongError, match="no test"):
        bench.expect_passes(run(tmp_path, case(1), case(2)), CELLS, [])


def test_two_ranks_that_nccl_refuses_are_not_possible_in_its_own_words(bench, tmp_path):
    refused = case(2, verdict=("failure", "failed"), text=REFUSAL)
    for judge in (
        lambda: bench.expect_passes(run(tmp_path, refused, code=1), CELLS, ["test_a"]),
        lambda: bench.expect_no_failures(run(tmp_path, refused, code=1), CELLS, 1),
    ):
        with pytest.raises(ImpossibleError, match=r"NCCL 2\.28\.9 .* Duplicate GPU detected : rank 1 and rank 0"):
            judge()


def test_a_suite_in_which_all_is_skipped_is_not_possible_and_one_with_few_passes_is_wrong(bench, tmp_path):
    skipped = [case(size, verdict=("skipped", "s"), message="Need at least 2 CUDA devices") for size in (1, 2)]
    with pytest.raises(ImpossibleError, match="all 2 tests were skipped: Need at least 2"):
        bench.expect_no_failures(run(tmp_path, *skipped, code=5), CELLS, 1)
    with pytest.raises(WrongError, match="fewer than 1"):
        bench.expect_no_failures(run(tmp_path, case(1), skipped[1]), CELLS, 1)
    assert bench.expect_no_failures(run(tmp_path, case(1), case(2)), CELLS, 1) == "2 tests passed, 0 skipped"


def test_a_torch_without_nccl_is_a_reason(bench):
    assert bench.nccl == "nccl"
    bench.machine = Machine(python="3.12", torch="2.13.0+cpu", gpus=(GPU,), pretended=False)
    with pytest.raises(ImpossibleError, match="built without NCCL"):
        _ = bench.nccl


def test_recordings_of_nccl_flight_recorder_are_found(bench, tmp_path):
    attempt = tmp_path / "fault/results/run/cells/c/s/attempt-1"
    attempt.mkdir(parents=True)
    assert recordings_of(bench) == []
    (attempt / "flight-recorder-gang-0-rank-0").write_bytes(b"recording")
    (attempt / "flight-recorder-gang-0-rank-1").touch()
    assert recordings_of(bench) == ["flight-recorder-gang-0-rank-0"]


def test_a_report_is_read_as_it_is_written(tmp_path):
    (tmp_path / "junit.xml").write_text(
        '<testsuites><testsuite><properties><property name="allranks.cell" value="c"/>'
        '<property name="allranks.gpus" value="GPU-a GPU-b"/></properties>'
        '<testcase name="t" time="1.5"><properties><property name="allranks.ranks" value="0-2,5:failed 3:timed_out"/>'
        '<property name="allranks.leading" value="3"/></properties>'
        '<error type="timed_out" message="m">text</error></testcase></testsuite></testsuites>'
    )
    [found] = read_cases(tmp_path / "junit.xml")
    assert (found.cell, found.gpus, found.seconds, found.leading) == ("c", ("GPU-a", "GPU-b"), 1.5, 3)
    assert found.verdict == ("error", "timed_out")
    assert found.ranks == {0: "failed", 1: "failed", 2: "failed", 5: "failed", 3: "timed_out"}
    assert read_cases(tmp_path / "none.xml") == ()


def test_a_machine_is_read_as_it_was_written(bench):
    machine = Machine(python="3.12", gpus=(GPU,), by_nvml=(GPU,), free=(7,), lacking=("rich",), pretended=True)
    assert Machine.from_json(machine.to_json()) == machine
    assert "PRETENDED: no GPU" in machine.title
    assert "PRETENDED" not in bench.machine.title


def test_only_a_suite_with_an_image_runs_in_containers(bench):
    in_image = matrix_file(bench.machine, CELLS, Suite(source=SUITES / "inside", image="name@sha256:0"))
    assert tomllib.loads(in_image)["images"]["any"] == {"image": "name@sha256:0"}
    assert tomllib.loads(matrix_file(bench.machine, CELLS, _BASICS))["images"]["any"] == {"torch": "2.11.0"}


@pytest.mark.parametrize(
    ("machine", "outcomes", "code"),
    [
        ({}, ["not possible here"], 5),
        ({"by_nvml": (GPU,)}, ["not possible here"], 1),
        ({"gpus": (GPU,)}, ["proved", "not possible here"], 0),
        ({"gpus": (GPU,)}, ["proved", "wrong"], 1),
        ({"gpus": (GPU,)}, ["not possible here"], 1),
        ({"gpus": (GPU,), "pretended": True}, ["proved"], 0),
        ({"gpus": (GPU,), "pretended": True}, ["proved", "not possible here"], 1),
    ],
)
def test_the_exit_code_is_what_the_parts_came_to(tmp_path, machine, outcomes, code):
    there = Machine(**{"python": "3.12", "pretended": False, **machine})
    parts = [part.name for part in PARTS[1 : len(outcomes) + 1]]
    out = OutFolder(path=tmp_path, machine="m", parts=["kernel", *parts], pretended=there.pretended)
    for part, outcome in zip(["kernel", *parts], ["proved", *outcomes], strict=True):
        out.add(Verdict(part=part, outcome=outcome, text="t", checks=1, pretended=there.pretended))
    assert _exit_code(out, there) == code


def test_a_torch_that_is_not_there_or_too_old_is_a_reason():
    [part] = [part for part in PARTS if part.name == "nvml-and-torch"]
    [kernel] = [part for part in PARTS if not part.needs_gpus]
    assert _why_not(kernel, Machine(python="3.12", pretended=False)) == ""
    for about, why in (
        ({"by_nvml": (GPU,)}, "no torch"),
        ({}, "no GPU"),
        ({"torch": "2.5.1", "gpus": (GPU,)}, "older than 2.6"),
        ({"torch": "2.11.0", "gpus": (GPU,), "kernel_trouble": "This kernel lacks pidfd."}, "lacks pidfd"),
        ({"torch": "2.11.0+cu130", "gpus": (GPU,), "lacking": ("pytest",)}, "pytest"),
    ):
        assert why in _why_not(part, Machine(python="3.12", pretended=False, **about))
    assert _why_not(part, Machine(python="3.12", torch="2.6.0", gpus=(GPU,), pretended=False)) == ""


def test_gpus_are_held_while_parts_run_and_those_of_other_runs_are_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("ALLRANKS_LOCKS", str(tmp_path))
    machine = Machine(python="3.12", gpus=(GPU,), pretended=False)
    with _lease(machine):
        with pytest.raises(UsageError, match="Another run uses a GPU"):
            _lease(machine)
        with _lease(Machine(python="3.12", gpus=(GPU,), pretended=True)):
            pass
    with _lease(machine):
        pass


def test_every_part_has_a_function_and_a_name_of_its_own():
    assert len({part.name for part in PARTS}) == len(PARTS)
    assert all(callable(part.load()) for part in PARTS)
