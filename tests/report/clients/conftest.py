"""The clients, and one run that has every kind of verdict in it."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers, which pytest's importlib mode does not find

from client_counts import Clients
from services import CLIENTS

from allranks.report.judged import MergedRun
from allranks.report.junit_case import JUnitForm
from allranks.report.merging import merge

ENV, TCP, FILE, BROKEN, EMPTY = (
    "gloo-w2-g0-env/s", "gloo-w2-g0-tcp/s", "gloo-w2-g0-file/s", "gloo-w2-g0-env/broken", "gloo-w2-g0-env/empty",
)  # fmt: skip
HOSTILE = ("]]>", "<b>&amp;\"'", "\x1b[31mred", "nul\x00 \ud800", "line\nbreak\ttab", "é🎉", "Aa", "BB", " x", "x ")


@pytest.fixture
def clients(tmp_path: Path) -> Clients:
    """The installed clients, for tests with the marker `node`."""
    scratch = tmp_path / "clients"
    scratch.mkdir()
    return Clients(CLIENTS, scratch)


Report = Callable[[JUnitForm], tuple[MergedRun, Path]]


@pytest.fixture
def report(run_folder, tmp_path: Path) -> Report:
    """Merges the rich run in a form; the merged run, and a folder with nothing but the files of its report."""
    _fill(run_folder)

    def make(form: JUnitForm) -> tuple[MergedRun, Path]:
        merged = merge(run_folder.path, policy="pass", environ={}, junit_form=form)
        alone = tmp_path / "report"
        shutil.rmtree(alone, ignore_errors=True)
        alone.mkdir()
        for file in merged.junit_files:
            shutil.copy(file, alone)
        return merged, alone

    return make


def _fill(run_folder) -> None:
    """Verdicts of every kind, told in three attempts at one job; a lost job, a broken one, and one without tests."""
    run_folder.manifest(ENV, TCP, FILE, BROKEN, EMPTY)
    names = ("flaky_failure", "flaky_error", "always_fails", "always_crashes", "skipped_in_the_end")
    bad = [
        {"outcome": outcome, "message": f"{name} <&>", "text": f"trace of {name}", "stdout": "said"}
        for name, outcome in zip(names, ("failed", "crashed", "failed", "crashed", "failed"), strict=True)
    ]
    tests = {f"t/test_a.py::{name}": said for name, said in zip(names, bad, strict=True)}
    for number, said in ((1, tests), (2, tests), (3, tests | _last_attempt())):
        run_folder.job(ENV, number=number, collected=list(said))
        for rank in range(2):
            run_folder.rank(ENV, rank, said, number=number)
    run_folder.both(TCP, {"t/test_a.py::passes": "failed", "t/test_a.py::plain_skip": "passed"})
    run_folder.job(BROKEN, error={"what": "It broke.", "kind": "infrastructure"})
    run_folder.both(EMPTY, {}, deselected=3)


def _last_attempt() -> dict[str, object]:
    return {
        "t/test_a.py::flaky_failure": "passed",
        "t/test_a.py::flaky_error": "passed",
        "t/test_a.py::skipped_in_the_end": {"outcome": "skipped", "message": "enough"},
        "t/test_a.py::passes": "passed",
        "t/test_a.py::TestX::fails": {"outcome": "failed", "message": "boom", "text": "E boom", "stdout": "so"},
        "t/test_a.py::quiet": "failed",
        "t/test_a.py::blank": {"outcome": "crashed", "message": " ", "text": "\n"},
        "t/test_a.py::times_out": {"outcome": "timed_out", "message": "waited"},
        "t/test_a.py::plain_skip": {"outcome": "skipped", "message": "not today"},
        "t/test_a.py::silent_skip": "skipped",
        "t/test_a.py::expected": {"outcome": "xfailed", "message": "known"},
        "t/test_a.py::environment": {
            "outcome": "skipped", "message": "no NCCL", "skip_kind": "environment", "skip_code": 76,
        },
        "t/test_m.py": {"outcome": "skipped", "message": "the module needs CUDA"},
        "t/test_h.py::long": {"outcome": "failed", "message": "m" * 300_000, "text": "]]>" * 100_000},
        **{f"t/test_h.py::test[{hostile}]": "failed" for hostile in HOSTILE},
        **{f"t/test_h.py::{hostile}": "passed" for hostile in HOSTILE},
    }  # fmt: skip
