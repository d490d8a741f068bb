import subprocess
import sys

import pytest

from allranks.protocol import skip_codes
from allranks.protocol.outcomes import SkipKind
from allranks.protocol.skip_codes import (
    SkipCode,
    TorchSkip,
    installed_skips,
    kind,
    kind_of_exit,
    multi_gpu,
    reason,
    reason_of_exit,
    sandcastle_reason,
)


@pytest.fixture(scope="module")
def torch_codes():
    """The installed torch's exit codes by name."""
    return {skip.name: skip.code for skip in installed_skips().values()}


@pytest.fixture
def newer_torch(monkeypatch):
    """A torch whose table has no code 72, a different reason for 74, and additional codes."""
    table = [
        TorchSkip("no_cuda", 74, "CUDA has left."),
        TorchSkip("multi-xpu-2", 95, "Two of those, please"),
        TorchSkip("full_moon", 96, "Not tonight"),
    ]
    monkeypatch.setattr(skip_codes, "installed_skips", lambda: {skip.code: skip for skip in table})


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
def test_each_code_has_the_same_meaning_as_in_torch(torch_codes, torch_name, code):
    assert torch_codes[torch_name] == code


def test_every_code_has_its_own_reason():
    assert len({reason(code) for code in SkipCode}) == len(SkipCode)


def test_missing_gpus_are_a_hardware_skip_and_other_codes_an_environment_skip():
    hardware = {code.value for code in SkipCode if kind(code) is SkipKind.HARDWARE}
    environment = {code.value for code in SkipCode if kind(code) is SkipKind.ENVIRONMENT}
    assert hardware == {74, 75, 77, 79, 80, 81, 82, 83, 84, 85, 89}
    assert environment == {72, 73, 76, 78, 86, 87, 88}


def test_more_gpus_than_torch_has_codes_for_use_the_last_code():
    assert multi_gpu(9) is multi_gpu(8) is SkipCode.MULTI_GPU_8


@pytest.mark.parametrize("n", [0, -1])
def test_no_test_needs_less_than_one_gpu(n):
    with pytest.raises(ValueError, match="at least 1"):
        multi_gpu(n)


def test_the_table_can_be_read_without_torch_and_pytest():
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'pytest']));"
        "from allranks.protocol.skip_codes import SkipCode, reason; print(reason(SkipCode.NO_NCCL))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "NCCL" in done.stdout


@pytest.mark.parametrize("code", SkipCode)
def test_the_installed_torchs_reasons_take_precedence(code):
    assert reason_of_exit(code) == installed_skips()[code].message


@pytest.mark.usefixtures("newer_torch")
@pytest.mark.parametrize(
    ("status", "words", "of_kind"),
    [
        (72, reason(SkipCode.BACKEND_UNAVAILABLE), SkipKind.ENVIRONMENT),
        (74, "CUDA has left.", SkipKind.HARDWARE),
        (95, "Two of those, please", SkipKind.HARDWARE),
        (96, "Not tonight", SkipKind.ENVIRONMENT),
    ],
)
def test_a_code_in_either_table_is_a_skip(status, words, of_kind):
    assert (reason_of_exit(status), kind_of_exit(status)) == (words, of_kind)


@pytest.mark.usefixtures("newer_torch")
@pytest.mark.parametrize("status", [-11, -9, 0, 1, 2, 10, 71, 90, 97, 255, 74 - 256])
def test_a_status_in_no_table_is_not_a_skip(status):
    assert reason_of_exit(status) is None
    with pytest.raises(ValueError, match=f"exit status {status} is not a skip"):
        kind_of_exit(status)


@pytest.mark.parametrize("status", [-9, 0])
def test_torchs_source_is_not_read_for_a_signal_or_a_success(monkeypatch, status):
    monkeypatch.setattr(skip_codes, "installed_skips", None)
    assert reason_of_exit(status) is None


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("Skipping test_x on sandcastle for following reason: no NCCL\n", "no NCCL"),
        ("Skipping m.C.test_x on sandcastle for the following reason: no NCCL", "no NCCL"),
        ("a warning\nSkipping test_x on sandcastle for following reason: one: two\r\nmore\n", "one: two"),
        ("Skipping test_x on sandcastle for following reason: \nmore", "the rank skipped without a specific reason"),
        (
            "Skipping a on sandcastle for following reason: one\nSkipping b on sandcastle for following reason: two\n",
            "one",
        ),
        ("", None),
        ("INFO: Skipping test_x on sandcastle for following reason: no NCCL\n", None),
        ("  Skipping test_x on sandcastle for following reason: no NCCL\n", None),
        ("Skipping test_x\non sandcastle for following reason: no NCCL\n", None),
        ("Skipping test_x for following reason: no NCCL\n", None),
    ],
)
def test_the_sandcastle_message_is_recognized_only_on_its_own_line(stderr, expected):
    assert sandcastle_reason(stderr) == expected


def test_the_message_is_the_one_that_torch_prints():
    """torch's two decorators, executed from the source, because importing their module takes over a second."""
    program = """if True:
        import ast, functools, importlib.util, pathlib, sys
        torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
        path = torch / "testing" / "_internal" / "common_utils.py"
        wanted = ("skip_but_pass_in_sandcastle", "skip_but_pass_in_sandcastle_if")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if getattr(node, "name", "") in wanted]
        scope = {"IS_SANDCASTLE": True, "wraps": functools.wraps, "sys": sys}
        exec(compile(tree, str(path), "exec"), scope)
        @scope["skip_but_pass_in_sandcastle_if"](True, "the moon is full")
        def test_it(): raise AssertionError
        test_it()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert sandcastle_reason(done.stderr) == "the moon is full"
