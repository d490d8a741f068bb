"""``pytest --ranks N``: pytest sessions whose tests run on ranks."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree as ET

import pytest
from long_lists import quick

HEAD = """
import os
import pytest
import torch
import torch.distributed as dist
"""

OUTCOMES = (
    HEAD
    + """
def test_sum(process_group, rank, world_size):
    tensor = torch.full((1,), float(rank))
    dist.all_reduce(tensor)
    assert tensor.item() == sum(range(world_size))

@pytest.fixture
def broken(rank):
    if rank == 1:
        raise LookupError("no such thing")

@pytest.fixture
def spoilt(rank):
    yield
    assert rank == 0, "left behind"

def test_fails_on_one(rank):
    print("printed by", rank)
    assert rank == 0, "only the second"

def test_fixture(broken): pass

def test_spoilt(spoilt): pass

def test_skips(): pytest.skip("not today")

@pytest.mark.xfail(reason="known")
def test_expected(): assert 0

@pytest.mark.xfail
def test_unexpected(): pass

def test_crashes(rank):
    if rank == 1:
        os._exit(3)
    dist.barrier()

def test_disagrees(rank):
    if rank == 1:
        pytest.skip("not here")

@pytest.mark.require_world_size(4)
def test_of_four(): pass

def test_hangs(rank):
    if rank == 0:
        dist.barrier()
    import time
    time.sleep(99)

def test_last(): pass
"""
)


@pytest.fixture
def environment(tmp_path, environment_without_ranks):
    return {**environment_without_ranks, "TMPDIR": str(tmp_path / "tmp"), "PYTEST_ADDOPTS": "-p no:hypothesispytest"}


@pytest.fixture
def session(tmp_path, environment):
    """``session("-k", "x", file=text, ...)``: runs pytest; returns its exit status and output."""
    (tmp_path / "tmp").mkdir()

    def run(*arguments, folder=".", variables=(), **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        command = [sys.executable, "-m", "pytest", *arguments]
        done = subprocess.run(
            command,
            cwd=tmp_path / folder,
            env={**environment, **dict(variables)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def left_behind(folder):
    return sorted(path.name for path in (folder / "tmp").glob("allranks*"))


WARNS = """
import warnings
import pytest
warnings.warn("from the module")

@pytest.mark.timeout(8)
def test_passes(): pass
"""


@pytest.mark.thorough
def test_warnings_of_modules_are_shown_once_and_notices_of_the_ranks_too(session):
    status, output = session("--ranks=2", "-p", "no:timeout", test_it=WARNS)
    assert status == 0
    assert output.count("UserWarning: from the module") == 1
    assert output.count("notice: test_it.py::test_passes: The marker timeout of this test has no effect") == 1


def test_each_test_has_one_outcome_over_all_ranks(session, tmp_path):
    status, output = session(
        "--ranks=2", "--ranks-timeout=4", "-v", "-rA", "--junit-xml=out.xml", "--tb=short", test_it=OUTCOMES
    )
    assert status == 1
    printed = dict(re.findall(r"^test_it.py::(test_\w+) (\w+)", output, re.MULTILINE))
    assert printed == {
        "test_sum": "PASSED",
        "test_fails_on_one": "FAILED",
        "test_fixture": "ERROR",
        "test_spoilt": "ERROR",
        "test_skips": "SKIPPED",
        "test_expected": "XFAIL",
        "test_unexpected": "XPASS",
        "test_crashes": "FAILED",
        "test_disagrees": "FAILED",
        "test_of_four": "SKIPPED",
        "test_hangs": "FAILED",
        "test_last": "PASSED",
    }
    assert "ranks: 2 over gloo" in output
    assert "rank 1 failed: AssertionError: only the second" in output
    assert re.search(r"Captured stdout of rank 1 -+\nprinted by 1", output)
    assert "ERROR at teardown of test_spoilt" in output
    assert "rank 1 exited with code 3 during the test" in output
    assert "ranks disagree: rank 0 passed; rank 1 skipped" in output
    assert re.search(r"rank 1 .*time.*\n(.*\n)*.*test_it.py", output)
    assert "frames of pytest, pluggy and allranks" in output
    assert "/_pytest/" not in output
    assert "Seen from outside" not in output
    failures = output.partition("= FAILURES =")[2].partition("short test summary info")[0]
    assert failures.count("rank 1 failed: AssertionError: only the second") == 1
    assert "slow: test_it.py::test_hangs has been running for 1 s" in output
    assert "4 failed, 3 passed, 2 skipped, 1 xfailed, 1 xpassed, 2 errors" in output
    cases = {case.get("name"): case for case in ET.parse(tmp_path / "out.xml").iter("testcase")}  # noqa: S314 - our own
    assert cases.keys() == printed.keys()
    assert cases["test_fails_on_one"].find("properties/property").get("value") == "0:passed 1:failed"
    folder = re.search(r"logs and stacks of the ranks: (\S+)", output)[1]
    assert list(Path(folder).glob("cells/*/*/attempt-1/rank-1.log"))


FAILS = """
import time
import pytest

def test_fails(rank):
    print("output of", rank)
    if rank == 1:
        # the other rank waits
        assert [1, rank] == [1, 0]
    time.sleep(99)

@pytest.fixture
def broken(rank):
    assert rank == 0, "in a fixture"

def test_errors(broken): pass
"""


@pytest.mark.thorough
def test_failures_have_the_colors_and_the_order_of_pytest(session):
    pytest.importorskip("pygments")
    status, output = session("--ranks=2", "--color=yes", "-k", "fails", test_it=FAILS)
    assert status == 1
    lines = output.partition("= FAILURES =")[2].splitlines()[2:]
    assert re.fullmatch(r"(\x1b\[\d+m)+rank 1 failed: assert \[1, 1\] == \[1, 0\] \(rank 0: .*\x1b\[0m", lines[0])
    assert lines[1:4] == ["rank 0 aborted by rank 1; rank 1 failed (primary failure)", "", "rank = 1"]
    assert any(line.startswith(">   ") and "\x1b[94massert\x1b[39;49;00m" in line for line in lines)
    assert any(re.match(r"(\x1b\[\d+m)+E +assert \[1, 1\] == \[1, 0\]\x1b\[0m", line) for line in lines)
    assert any(re.match(r"(\x1b\[\d+m)+/.*/test_it.py\x1b\[0m:9: AssertionError", line) for line in lines)
    assert "Current thread" not in output, "--tb=long shows the stacks of the other ranks"


@pytest.mark.thorough
@pytest.mark.parametrize("style", ["line", "no", "long"])
def test_the_style_of_tracebacks_is_that_of_pytest(session, tmp_path, style):
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = --tb={style}")
    status, output = session("--ranks=2", "--junit-xml=out.xml", test_it=FAILS)
    assert status == 1
    headlines = re.findall(r"^(?:/.*/test_it.py:(\d+): )?rank 1 (?:failed|errored): (.*)", output, re.MULTILINE)
    expected = {"line": ["14", "9"], "no": [], "long": ["", ""]}[style]
    assert [line for line, _ in headlines] == expected
    assert ("assert rank == 0" in output) == ("time.sleep(99)\n" in output) == (style == "long")
    report = (tmp_path / "out.xml").read_text()
    assert "test_it.py:9: " in report
    assert "test_it.py&quot;, line 10 in test_fails" in report or 'test_it.py", line 10 in test_fails' in report


GREEN = (
    HEAD
    + """
import helper

@pytest.mark.parametrize("number", [1, 2])
def test_helper(rank, number):
    assert helper.both(rank) == rank + 1

def test_other(): raise AssertionError("not selected")
"""
)
HELPER = """
def both(rank):
    if rank == 0:
        return 1
    return 2
"""

AROUND_TESTS = """
import os
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if "RANK" not in os.environ:
        with (item.config.rootpath / "around").open("a") as file:
            print(item.nodeid, file=file)
    return (yield)
"""


@pytest.mark.thorough
def test_on_a_ci_service_the_summary_has_one_line_for_a_failure(session):
    """With the environment variable CI, pytest does not truncate plain strings."""
    test = "def test_it(process_group, rank):\n    assert rank == 0, 'of rank 1'\n    process_group.barrier().wait()\n"
    _, output = session("--ranks=2", "test_it.py", variables=[("CI", "true")], test_it=test)
    summary = output.partition("short test summary info")[2].splitlines()
    assert summary[1].startswith(
        "FAILED test_it.py::test_it - rank 1 failed: AssertionError: of rank 1 (rank 0: aborted"
    )
    assert re.fullmatch("=+ 1 failed in .*", summary[2])


@pytest.mark.thorough
def test_a_test_selected_by_id_in_a_subfolder_runs_alone(session, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "conftest.py").write_text(AROUND_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --ranks=2 --import-mode=importlib\npythonpath = .")
    (tmp_path / "below" / "test_it.py").write_text(GREEN)
    status, output = session("test_it.py::test_helper[2]", folder="below", helper=HELPER)
    assert status == 0, output
    assert "1 passed" in output
    assert (tmp_path / "around").read_text() == "below/test_it.py::test_helper[2]\n", "as the adapters of editors do"
    assert left_behind(tmp_path) == []
    status, output = session("below", "-k", "helper", "-s")
    assert status == 0, output
    assert "2 passed, 1 deselected" in output


VSCODE_PYTEST = """
import pathlib
import pytest

def write(*words):
    with pathlib.Path(__file__).with_name("sent").open("a") as file:
        print(*words, file=file)

def pytest_sessionstart(session):
    write("started", session.config.option.ranks)

def pytest_report_teststatus(report):
    if report.when == "call" or (report.when == "setup" and report.skipped):
        write(report.nodeid, report.outcome, *report.longreprtext.splitlines()[:1])

def pytest_exception_interact(node, call, report):
    write(node.nodeid, report.when, "exception", *call.excinfo.exconly().splitlines()[:1])
"""


@pytest.mark.thorough
def test_the_plugin_of_an_editor_receives_one_result_for_each_test(session, tmp_path):
    """VS Code discovers with --collect-only, runs by ids, and reads results in these hooks."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --ranks 2\npythonpath = .")
    plugin = ("-p", "vscode_pytest", f"--rootdir={tmp_path}")
    files = {"test_it": FAILS, "test_ok": GREEN, "helper": HELPER, "vscode_pytest": VSCODE_PYTEST}
    status, output = session(*plugin, "--collect-only", **files)
    assert (status, "5 tests collected" in output) == (0, True), output
    ids = (f"{tmp_path}/test_it.py::test_fails", f"{tmp_path}/test_it.py::test_errors", "test_ok.py::test_helper[1]")
    status, output = session(*plugin, "--capture", "no", *ids)
    assert status == 1, output
    error = "allranks.pytest_plugin.verdict_reports.RankFailedError: rank 1 errored: AssertionError: in a fixture"
    failure = "rank 1 failed: assert [1, 1] == [1, 0]"
    sent = [line.partition(" (rank 0")[0] for line in (tmp_path / "sent").read_text().splitlines()]
    assert sent.count("started 2") == 2, "in no rank"
    assert list(dict.fromkeys(sent)) == [  # the first result of a test counts
        "started 2",
        f"test_it.py::test_fails failed {failure}",
        f"test_it.py::test_fails call exception allranks.pytest_plugin.verdict_reports.RankFailedError: {failure}",
        f"test_it.py::test_errors setup exception {error}",
        "test_ok.py::test_helper[1] passed",
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ("--basetemp=own", "--", ".."),
        *(pytest.param(each, marks=pytest.mark.thorough) for each in (("--basetemp=own",), ("--basetemp", "own"))),
    ],
)
def test_paths_are_relative_to_where_pytest_was_started(session, tmp_path, arguments):
    (tmp_path / "below").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nlog_file = run.log")
    suite = "import logging\ndef test_it(tmp_path, rank):\n    tmp_path.touch()\n    logging.warning('seen')"
    paths = () if "--" in arguments else ("..",)
    status, output = session("--ranks=2", *paths, *arguments, folder="below", test_it=suite)
    assert status == 0, output
    below = tmp_path / "below"
    assert {path.parent.name for path in below.glob("own/*/*/gang-*/*/test_it0")} == {"rank-0", "rank-1"}
    assert {path.name for path in below.glob("run.ranks/*/*/gang-*/*.log") if "seen" in path.read_text()} == {
        "rank-0.log",
        "rank-1.log",
    }
    assert not (tmp_path / "own").exists()


@pytest.mark.thorough
def test_debug_without_a_file_overwrites_no_test(session, tmp_path):
    suite = "def test_it(): pass\n"
    status, output = session("--ranks=2", "test_it.py", "--debug", test_it=suite)
    assert status == 0, output
    assert (tmp_path / "test_it.py").read_text() == suite
    assert [*tmp_path.glob("pytestdebug.ranks/*/*/gang-1/rank-1.log")]


def test_exitfirst_ends_the_session_and_the_failure_is_in_lastfailed(session):
    suite = "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_it(rank, n): assert (rank, n) != (1, 1)"
    status, output = session("--ranks=2", "-x", test_it=suite)
    assert status == 1
    assert "stopping after 1 failures" in output
    assert "1 failed, 1 passed" in output
    status, output = session("--ranks=2", "--lf")
    assert status == 1
    assert "run-last-failure" in output
    assert "1 failed in" in output


WRONG_BACKENDS = [
    (("--ranks-backend=glooo",), {}, "--ranks-backend: 'glooo' is not a supported backend. Did you mean 'gloo'?"),
    (("--ranks-backend=cuda:nccl,cpu:gloo",), {}, "Known: 'gloo', 'nccl', 'mpi'.*matrix.custom_backends"),
    (("--ranks-backend=NCCL",), {}, "Did you mean 'nccl'?"),
    (("--ranks-backend", "gloo "), {}, "Did you mean 'gloo'?"),
    (("--ranks-backend=",), {}, "'' is not a supported backend"),
    (("--ranks-backend=undefined",), {}, "'undefined' is not a supported backend"),
]


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    quick(
        1,
        [
            (("-n", "2"), {}, "-n of pytest-xdist"),
            (("--pdb",), {}, "--pdb cannot be used.*Use --pdb-rank N."),
            (("--pdb-rank=1",), {}, "--pdb-rank needs a terminal"),
            (("--pdb-rank=2",), {}, "the ranks are 0 to 1"),
            (("--ranks=0",), {}, "the number of ranks must be from 1"),
            (("--ranks=10001",), {}, "the number of ranks must be from 1 to 10000"),
            *quick(2, WRONG_BACKENDS),
            (("--ranks-timeout=0",), {}, "--ranks-timeout 0: the number of seconds must be greater than 0"),
            (("--ranks-timeout=-3",), {}, "the number of seconds must be greater than 0"),
            (("--ranks-timeout=nan",), {}, "the number of seconds must be greater than 0"),
            (("--ranks-timeout=inf",), {}, "the number of seconds must be greater than 0"),
            ((), {"RANK": "0", "WORLD_SIZE": "2"}, r"this process is already one of 2 ranks \(WORLD_SIZE\)"),
            (
                (),
                {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
                r"this process is already one of 2 ranks \(SLURM_STEP_NUM_TASKS\)",
            ),
            ((), {"WORLD_SIZE": "3"}, "--ranks is 2, but WORLD_SIZE is 3"),
            ((), {"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'; it must be a whole number, at least 0"),
        ],
    ),
    ids=str,
)
def test_conflicting_options_are_a_usage_error(session, arguments, variables, words):
    status, output = session("--ranks=2", *arguments, variables=variables, test_it="def test_it(): pass")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert re.search(words, output)
    assert "Traceback" not in output


CHOOSES = """
import os
import pytest

WORLD = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "BACKEND")}

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.name == "test_of_" + WORLD["WORLD_SIZE"]]
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"},
        pytest.param({"WORLD_SIZE": "2"}, marks=pytest.mark.thorough),
    ],
)
def test_the_session_collects_in_the_environment_of_the_process_that_forks_ranks(session, variables):
    tests = """
    from conftest import WORLD

    def test_of_1(): pass

    def test_of_2():
        assert WORLD == {"RANK": None, "WORLD_SIZE": "2", "LOCAL_RANK": None, "BACKEND": "gloo"}
    """
    status, output = session("--ranks=2", variables=variables, conftest=CHOOSES, test_it=dedent(tests))
    assert (status, "1 passed" in output) == (0, True), output


BACKEND_MODULE = """
import torch.distributed as dist

class Group(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)

dist.Backend.register_backend("mine", Group, devices=["cpu"])
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "files", "declared"),
    quick(
        2,
        [
            ((), {"conftest": "import mine", "mine": BACKEND_MODULE}, ""),
            ((), {"mine": BACKEND_MODULE, "test_it": "import mine\n"}, "[matrix]\ncustom_backends = ['mine']\n"),
            ((), {"conftest": BACKEND_MODULE}, ""),
            (("-p", "mine"), {"mine": BACKEND_MODULE}, ""),
        ],
    ),
    ids=["conftest.py", "matrix.toml", "own conftest.py", "-p"],
)
def test_a_custom_backend_is_accepted(session, tmp_path, arguments, files, declared):
    (tmp_path / "matrix.toml").write_text(declared or "[suites.mine]\npath = 'tests'\n")
    test = "def test_it(backend): assert backend == 'mine'\n"
    files = {**files, "test_it": files.get("test_it", "") + test}
    status, output = session("--ranks=2", "--ranks-backend=mine", *arguments, variables=[("PYTHONPATH", ".")], **files)
    assert status == 0, output
    assert "ranks: 2 over mine" in output


@pytest.mark.thorough
def test_a_broken_matrix_file_is_a_usage_error_if_it_might_declare_the_backend(session, tmp_path):
    (tmp_path / "matrix.toml").write_text("[matrix]\ncustom_backends = 'mine'\n")
    test = "def test_it(): pass"
    assert session("--ranks=2", test_it=test)[0] == 0
    status, output = session("--ranks=2", "--ranks-backend=mine", test_it=test)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "matrix.toml:2: matrix.custom_backends" in output
    assert "Traceback" not in output


SKIPS_IN_FIXTURE = """
import pytest
@pytest.fixture
def absent(): pytest.skip("not here")
def test_it(absent): pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "text", "words"),
    quick(
        1,
        [
            (("--ranks-backend=nccl",), "def test_it(): pass", "is built without nccl"),
            ((), "import pytest\ndef test_it(): pytest.skip('not today')", "not today"),
            (("-k", "nothing"), "def test_it(): pass", ""),
            (("--ranks-backend=mpi",), "def test_it(): pass", "is built without mpi"),
            ((), "import pytest\n@pytest.mark.skip(reason='not today')\ndef test_it(): pass", "not today"),
            ((), SKIPS_IN_FIXTURE, "not here"),
            ((), "import pytest\n@pytest.mark.require_world_size(3)\ndef test_it(): pass", "the world is too small"),
            ((), "import pytest\npytest.skip('no CUDA', allow_module_level=True)", ""),
            (("-m", "nothing"), "def test_it(): pass", ""),
            ((), "def helper(): pass", ""),
        ],
    ),
    ids=str,
)
def test_a_session_in_which_no_test_executed_exits_5(session, arguments, text, words):
    status, output = session("--ranks=2", *arguments, test_it=text)
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED, output
    if words:
        assert re.search(f"no test ran: all were skipped, or none was selected.*{words}", output, re.DOTALL)


@pytest.mark.thorough
@pytest.mark.parametrize("more", quick(1, ["def test_other(): pass", "@pytest.mark.xfail\ndef test_other(): assert 0"]))
def test_one_executed_test_is_enough(session, more):
    text = f"import pytest\ndef test_it(): pytest.skip('not today')\n{more}\n"
    status, output = session("--ranks=2", test_it=text)
    assert status == 0, output
    assert "no test ran" not in output


@pytest.mark.thorough
def test_a_session_that_only_collects_has_nothing_to_run(session):
    status, output = session("--ranks=2", "--collect-only", test_it="def test_it(): pass")
    assert status == 0, output


@pytest.mark.thorough
def test_every_test_is_reported_if_the_job_fails(session):
    suite = """
import os
if "ALLRANKS_GPU_COUNT" in os.environ:  # in the job, not where it was selected
    raise RuntimeError("there is no such thing here")
def test_one(): pass
def test_two(): pass
"""
    status, output = session("--ranks=2", test_it=suite)
    assert status == 1
    assert "2 errors" in output
    assert "no rank reported this test: test_it.py cannot be collected." in output
    assert "there is no such thing here" in output


@pytest.mark.thorough
def test_a_test_that_the_job_does_not_collect_is_an_error(session):
    suite = """
import os, pytest
@pytest.mark.parametrize("n", [0] if "ALLRANKS_GPU_COUNT" in os.environ else [0, 1])
def test_it(n): pass
"""
    status, output = session("--ranks=2", test_it=suite)
    assert status == 1
    assert "1 passed, 1 error" in output
    assert "no rank reported this test: pytest has collected it, but" in output


@pytest.mark.thorough
def test_a_module_that_cannot_be_imported_ends_the_session_before_any_rank(session):
    status, output = session("--ranks=2", test_it="import nothing_of_the_kind")
    assert status == pytest.ExitCode.INTERRUPTED
    assert "1 error during collection" in output


ENDLESS = """
import pathlib, time
def test_it(rank):
    pathlib.Path(__file__).with_name(f"r{rank}").touch()
    time.sleep(99)
"""


@pytest.mark.thorough
def test_an_interrupt_ends_the_ranks(tmp_path, session, environment):
    session("--co", test_it=ENDLESS)
    command = [sys.executable, "-m", "pytest", "--ranks=2"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "r1").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "KeyboardInterrupt" in output
    assert "test_it.py::test_it: ranks 0, 1 were aborted" in output
    assert "the job was ended from outside at test_it.py:5 in test_it" in output
    assert [name for name in left_behind(tmp_path) if name.startswith("allranks-job-")] == []


DRAWN = (
    HEAD
    + """
import random

class Case:
    def __init__(self, value): self.value = value

@pytest.mark.parametrize("case", [Case(value) for value in SOURCE])
def test_case(case): pass
"""
)
OF_TEXTS = "{'ada', 'bea', 'cyd', 'dan', 'eve', 'fay', 'gil', 'hal'}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "variables", "is_same"),
    quick(
        2,
        [
            (OF_TEXTS, {}, False),
            ("torch.rand(3)", {}, True),
            ("range(3)", {}, True),
            (OF_TEXTS, {"PYTHONHASHSEED": "3"}, True),
            ("random.sample(range(999), 4)", {}, True),
            ("random.SystemRandom().sample(range(999), 4)", {}, False),
            ("[os.getpid()]", {}, False),
            ("[__import__('uuid').uuid4()]", {}, True),
        ],
    ),
)
def test_parameters_that_differ_from_those_pytest_collected_are_an_error(session, source, variables, is_same):
    status, output = session("--ranks=2", variables=variables, test_drawn=DRAWN.replace("SOURCE", source))
    assert status == (0 if is_same else 1), output
    assert ("The parameter values of the ranks differ from those of pytest under the same ids" in output) != is_same
    assert ("PYTHONHASHSEED=0 pytest --ranks" in output) != is_same
