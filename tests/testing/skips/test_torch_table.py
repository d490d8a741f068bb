import subprocess
import sys
from pathlib import Path

import pytest

from allranks.protocol import skip_codes
from allranks.protocol.skip_codes import TorchSkip, installed_skips, parse_skips


@pytest.fixture(autouse=True)
def no_memory():
    installed_skips.cache_clear()
    yield
    installed_skips.cache_clear()


def test_the_table_of_the_installed_torch_is_found():
    assert installed_skips()[77].name == "multi-gpu-2"


@pytest.mark.parametrize("annotation", ["", ": dict[str, TestSkip]"])
def test_only_literals_are_read_from_the_source(annotation):
    source = f"""
import no_such_module
raise SystemExit
TEST_SKIPS{annotation} = {{
    "one": TestSkip(90, "first " "words"),
    "two": TestSkip(BASE + 1, "computed"),
    "three": TestSkip(92, f"{{words}}"),
    **more(),
    "four": TestSkip(93, "fourth"),
}}
TEST_SKIPS["five"] = TestSkip(94, "late")
"""
    assert list(parse_skips(source)) == [TorchSkip("one", 90, "first words"), TorchSkip("four", 93, "fourth")]


def test_a_table_may_be_on_one_line_or_have_comments():
    sources = (
        'TEST_SKIPS = {"one": TestSkip(90, "words")}\n',
        'TEST_SKIPS = {\n# first\n    "one": TestSkip(90, "words")}\n',
    )
    for source in sources:
        assert list(parse_skips(f"{source}\n\ndef later(): pass\n")) == [TorchSkip("one", 90, "words")]


@pytest.mark.parametrize("source", ["", "TEST_SKIPS = build()", "this is no Python", "nul\0byte"])
def test_a_source_with_a_different_structure_has_no_skips(source):
    assert list(parse_skips(source)) == []


def test_a_torch_without_the_file_has_no_skips(monkeypatch, tmp_path):
    monkeypatch.setattr(skip_codes, "_table_file", lambda: tmp_path / "common_distributed.py")
    assert installed_skips() == {}


def test_without_torch_there_are_no_skips(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(sys, "path", [])
    assert installed_skips() == {}


def test_the_table_is_read_once(monkeypatch):
    first = installed_skips()
    monkeypatch.setattr(Path, "read_text", None)
    assert installed_skips() is first


def test_reading_the_table_imports_nothing_of_torch():
    program = (
        "import sys; from allranks.protocol.skip_codes import reason_of_exit; assert 'CUDA' in reason_of_exit(77);"
        "sys.exit(any(name.split('.')[0] == 'torch' for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
