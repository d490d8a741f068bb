"""Ranks that a test starts itself: twelve ways to start them, and what goes wrong in one of two."""

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from declaration import LIMITS, Fault, passed
from fault_run import Case, Seen, records_of, run_fault
from starters import STYLES, limit_of

from allranks.protocol.records import JOURNAL, Notice

SUITE = Path(__file__).parent / "styles"

RUNS = {
    "host": ("process", ("process-fork",), ()),
    "containers": ("docker", ("torch-fork", "programs"), (pytest.mark.docker,)),
    "forks": ("process", ("fork", "torch-fork", "elastic", "debug-launcher"), (pytest.mark.thorough,)),
    "spawned": ("process", ("process-spawn", "process-forkserver", "pool", "executor"), (pytest.mark.thorough,)),
    "torch-spawn": ("process", ("torch-spawn",), (pytest.mark.thorough,)),
    "torchrun": ("process", ("programs", "torchrun"), (pytest.mark.thorough,)),
}
"""One command each: the engine and the styles."""

FAULTS = ("raise", "exit", "kill", "hang", "peer", "expected", "crash", "after")

EVERYTHING = [
    pytest.param(run, style, fault, marks=marks, id=f"{run}-{style}-{fault}")
    for run, (_, styles, marks) in RUNS.items()
    for style in styles
    for fault in FAULTS
]

pytestmark = pytest.mark.alone


def place_of(comment: str) -> str:
    lines = (SUITE / "faults.py").read_text().splitlines()
    return f"suite/faults.py:{next(at for at, line in enumerate(lines, 1) if line.endswith(f'  # {comment}'))}"


RAISED = f"raised ValueError: boom at {place_of('raises')}"
ENDS = {
    "raise": RAISED,
    "exit": "ended with exit status 3",
    "kill": "was killed by SIGKILL",
    "hang": f"was in {place_of('hangs')} in hang, ",
    "peer": RAISED,
    "crash": "was killed by SIGSEGV",
}
VERDICTS = {"hang": ("error", "timed_out"), "crash": ("error", "errored")}

OTHER_ENDS = {("executor", "exit"): f"raised SystemExit: 3 at {place_of('leaves')}"}
"""An executor's worker passes on any exception."""

OTHER_VERDICTS = {
    ("executor", "exit"): ("error", "crashed"),
    # A pool waits forever for the result of a worker that has ended.
    **{("pool", fault): ("error", "timed_out") for fault in ("exit", "kill", "crash")},
}


@pytest.fixture(scope="module")
def seen_of() -> Iterator[Callable[[str], Seen]]:
    """What became of a run, which begins with its first test."""
    found: dict[str, Seen] = {}

    def seen(run: str) -> Seen:
        if run not in found:
            engine, styles, _ = RUNS[run]
            fault = Fault(
                name="styles",
                path=SUITE,
                world_size=2,
                launches_ranks=True,
                test="",
                expected=passed(1),
                seconds=0,
                limits={**LIMITS, "process_group": 4, "test": 30, "job": 220},
                environment={"STYLES": " ".join(styles)},
            )
            found[run] = run_fault(fault, engine, Path(folder, run))
        return found[run]

    # A fork server's socket is below it, and paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="styles-") as folder:
        yield seen


def case_of(seen: Seen, name: str) -> Case:
    [case] = [case for case in seen.cases if case.name == name] or pytest.fail(seen.details)
    return case


def notices_of(seen: Seen, name: str) -> list[str]:
    records = records_of(seen.folder / JOURNAL)
    return [record.text for record in records if isinstance(record, Notice) and record.nodeid.endswith(f"::{name}")]


@pytest.mark.parametrize(("run", "style", "fault"), EVERYTHING)
def test_the_right_process_leads_with_its_line_in_time(
    run: str, style: str, fault: str, seen_of: Callable[[str], Seen]
):
    seen = seen_of(run)
    if fault in ("expected", "after"):
        _check_that_passes(seen, style, fault)
        return
    name = f"test_{'passes' if fault == 'crash' else 'fails'}[{style}-{fault}]"
    case = case_of(seen, name)
    verdict = OTHER_VERDICTS.get((style, fault)) or VERDICTS.get(fault, ("failure", "failed"))
    assert case.verdict == verdict, case
    assert case.seconds < limit_of(style) + seen.slack
    first = f"child process (rank 1) {OTHER_ENDS.get((style, fault), ENDS[fault])}"
    if verdict[1] == "timed_out":
        assert f"; {first}" in case.message
        assert case.message.count("child process (rank 0) raised") == 0
    else:
        assert case.message.startswith(f"rank 0 {verdict[1]}: {first}")
    if fault == "hang":
        [seconds] = re.findall(re.escape(first) + r"(\S+) s after its start", case.message)
        assert 0 < float(seconds) < limit_of(style) + seen.slack
    assert "/suite/" not in case.message
    assert "…" not in case.message


def _check_that_passes(seen: Seen, style: str, fault: str) -> None:
    names = {"expected": ("test_passes",), "after": ("test_leaves", "test_next")}[fault]
    for name in names:
        assert case_of(seen, f"{name}[{style}-{fault}]").verdict == ("passed", "")
    notices = notices_of(seen, f"{names[-1]}[{style}-{fault}]")
    if fault == "after":
        assert [notice for notice in notices if " of an earlier test " not in notice] == []
    elif style in ("pool", "executor"):  # their workers go on
        assert not notices
    else:
        assert f"child process (rank 1) {RAISED}, but the test passed" in notices


def test_all_styles_run_on_the_host():
    assert {style for engine, styles, _ in RUNS.values() for style in styles if engine == "process"} == set(STYLES)
