import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from allranks.harness.outcome import SkipKind
from allranks.testing.skipcodes import SkipCode, kind, multi_gpu, reason


@pytest.fixture(scope="module")
def torch_codes():
    """The installed torch's exit codes by name, read from its source: importing it needs more than torch."""
    source = Path(torch.__file__).parent / "testing" / "_internal" / "common_distributed.py"
    (table,) = (
        node.value
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TEST_SKIPS"
    )
    return {
        ast.literal_eval(name): ast.literal_eval(skip.args[0])
        for name, skip in zip(table.keys, table.values, strict=True)
    }


def test_the_table_has_exactly_the_codes_of_the_installed_torch(torch_codes):
    assert {code.value for code in SkipCode} == set(torch_codes.values())


@pytest.mark.parametrize(
    ("torch_name", "code"),
    [
        ("backend_unavailable", SkipCode.BACKEND_UNAVAILABLE),
        ("small_worldsize", SkipCode.SMALL_WORLD_SIZE),
        ("odd_worldsize", SkipCode.ODD_WORLD_SIZE),
        ("no_cuda", SkipCode.NO_CUDA),
        ("nccl", SkipCode.NO_NCCL),
        ("skipIfRocm", SkipCode.ROCM),
        ("no_peer_access", SkipCode.NO_PEER_ACCESS),
        ("generic", SkipCode.GENERIC),
        ("importerror", SkipCode.MISSING_IMPORT),
        ("no_accelerator", SkipCode.NO_ACCELERATOR),
        *((f"multi-gpu-{n}", multi_gpu(n)) for n in range(1, 9)),
    ],
)
def test_each_code_means_what_torch_means_by_it(torch_codes, torch_name, code):
    assert torch_codes[torch_name] == code


def test_every_code_has_a_reason_of_its_own():
    assert len({reason(code) for code in SkipCode}) == len(SkipCode)


def test_want_of_gpus_is_a_hardware_skip_and_all_else_an_environment_skip():
    hardware = {code.value for code in SkipCode if kind(code) is SkipKind.HARDWARE}
    environment = {code.value for code in SkipCode if kind(code) is SkipKind.ENVIRONMENT}
    assert hardware == {74, 75, 77, 79, 80, 81, 82, 83, 84, 85, 89}
    assert environment == {72, 73, 76, 78, 86, 87, 88}


def test_more_gpus_than_torch_has_codes_for_are_the_last_code():
    assert multi_gpu(9) is multi_gpu(8) is SkipCode.MULTI_GPU_8


@pytest.mark.parametrize("n", [0, -1])
def test_no_test_needs_less_than_one_gpu(n):
    with pytest.raises(ValueError, match="from 1"):
        multi_gpu(n)


def test_the_table_can_be_read_without_torch_and_pytest():
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'pytest']));"
        "from allranks.testing.skipcodes import SkipCode, reason; print(reason(SkipCode.NO_NCCL))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "NCCL" in done.stdout
