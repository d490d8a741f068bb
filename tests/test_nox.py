"""nox in a scratch repository with a matrix file and a noxfile of three lines."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import allranks

NOXFILE = "from allranks.nox import register\n\nregister()\n"

MATRIX = """\
[matrix]
backend = ["gloo", "nccl"]
world_size = [1, 2]
gpu_count = [0, 2]

[[matrix.exclude]]
when = "backend == 'nccl' and gpu_count != world_size"
reason = "a GPU for each rank"

[[matrix.exclude]]
when = "backend == 'gloo' and gpu_count > 0"
reason = "gloo is tested on CPU tensors"

[suites.tiny]
path = "suite"

[images.all]
torch = "2.13.0"
"""

CELL = "dist(backend='gloo', world_size=2, gpu_count=0, init_method='env')"

RECORDER = """
import json, os, sys
from pathlib import Path

names = ("ALLRANKS_RUN_ID", "ALLRANKS_INVOCATION_ID", "PYTHONPATH")
call = {"arguments": sys.argv[1:], **{name: os.environ.get(name) for name in names}}
with Path(os.environ["CALLS"]).open("a") as file:
    file.write(json.dumps(call) + "\\n")
sys.exit(int(os.environ.get("EXIT_CODE", "0")))
"""
"""Replaces ``python -m allranks``."""

RECORDING_NOXFILE = """
import sys
from allranks import nox as sessions

sessions.orchestrator = lambda: (sys.executable, {"PYTHONPATH": RECORDER})
sessions.register()
"""


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "suite").mkdir(parents=True)
    (folder / "matrix.toml").write_text(MATRIX)
    (folder / "noxfile.py").write_text(NOXFILE)
    return folder


@pytest.fixture
def nox(repository, monkeypatch):
    """Run nox in the repository."""
    monkeypatch.delenv("ALLRANKS_RUN_ID", raising=False)
    monkeypatch.delenv("ALLRANKS_INVOCATION_ID", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nox", *arguments]
        return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture
def calls(repository, tmp_path, monkeypatch):
    """Replace the command of the sessions by a recorder; return its calls."""
    recorder = tmp_path / "recorder" / "allranks"
    recorder.mkdir(parents=True)
    (recorder / "__init__.py").touch()
    (recorder / "__main__.py").write_text(RECORDER)
    (repository / "noxfile.py").write_text(f"RECORDER = {str(recorder.parent)!r}\n{RECORDING_NOXFILE}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return lambda: [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


def test_a_list_has_each_cell_and_each_prefix_of_several_once_and_counts_them(nox, repository):
    (repository / "matrix.toml").write_text(
        MATRIX.replace("gpu_count = [0, 2]", 'gpu_count = [0, 2]\ninit_method = ["env", "tcp"]')
    )
    done = nox("--list")
    assert done.returncode == 0, done.stderr
    listed = [line.removeprefix("- ") for line in done.stdout.splitlines() if line.startswith("- dist")]
    cells = [
        f"dist(backend='{backend}', world_size={size}, gpu_count={gpus}, init_method='{method}')"
        for backend, size, gpus in (("gloo", 1, 0), ("gloo", 2, 0), ("nccl", 2, 2))
        for method in ("env", "tcp")
    ]
    assert [line.partition(" [")[0] for line in listed[: len(cells)]] == cells
    assert listed[len(cells) :] == [
        "dist(backend='gloo') -> gloo: 4 cells",
        "dist(backend='nccl') -> nccl: 2 cells",
        "dist(backend='gloo', world_size=1) -> gloo, 1 rank: 2 cells",
        "dist(backend='gloo', world_size=2) -> gloo, 2 ranks: 2 cells",
    ]


@pytest.mark.thorough
def test_a_prefix_that_the_list_leaves_out_runs_too(nox, calls):
    for signature in ("dist(backend='nccl', world_size=2)", "dist(backend='gloo', world_size=2, gpu_count=0)"):
        assert nox("-s", signature).returncode == 0
        assert signature not in nox("--list").stdout
    assert len(calls()) == 2


@pytest.mark.thorough
def test_no_cell_runs_by_default(nox, calls, tmp_path):
    nox()
    assert not (tmp_path / "calls").exists()
    assert calls


def test_list_for_machines_has_each_cell_with_its_values_and_tags(nox):
    listed = json.loads(nox("--list", "--json").stdout)
    cells = [entry for entry in listed if entry["name"] == "dist"]
    assert [entry["call_spec"] for entry in cells] == [
        {"backend": "gloo", "world_size": 1, "gpu_count": 0, "init_method": "env"},
        {"backend": "gloo", "world_size": 2, "gpu_count": 0, "init_method": "env"},
        {"backend": "nccl", "world_size": 2, "gpu_count": 2, "init_method": "env"},
    ]
    assert cells[2]["tags"] == ["cell", "nccl", "world2", "gpu2", "env"]


@pytest.mark.thorough
def test_nodes_are_an_axis_where_a_cell_has_several(nox, repository):
    (repository / "matrix.toml").write_text(MATRIX.replace("world_size = [1, 2]", "world_size = [2]\nnodes = [1, 2]"))
    done = nox("--list")
    for nodes in (1, 2):
        assert f"dist(backend='gloo', world_size=2, gpu_count=0, init_method='env', nodes={nodes})" in done.stdout


@pytest.mark.thorough
def test_an_unknown_signature_is_not_found_and_runs_nothing(nox, calls, tmp_path):
    done = nox("-s", "dist(backend='mpi')")
    assert done.returncode != 0
    assert "dist(backend='mpi')" in done.stderr
    assert not (tmp_path / "calls").exists()
    assert calls


@pytest.mark.parametrize(
    ("signature", "where"),
    [
        (CELL, "--where=backend=gloo,world_size=2,gpu_count=0,init_method=env"),
        ("dist(backend='gloo')", "--where=backend=gloo"),
        ("dist(backend='nccl', world_size=2)", "--where=backend=nccl,world_size=2"),
    ],
)
def test_a_session_runs_its_cells_and_hands_on_what_follows_the_dashes(nox, calls, signature, where):
    done = nox("-s", signature, "--", "-k", "a or b", "-x")
    assert done.returncode == 0, done.stderr
    [call] = calls()
    run, selection, matrix, *rest = call["arguments"]
    assert (run, selection, rest) == ("run", where, ["--", "-k", "a or b", "-x"])
    assert matrix.startswith("--matrix=/")


@pytest.mark.parametrize("named", [["--suite", "torch-c10d"], ["--suite=torch-c10d"]])
def test_a_suite_that_is_named_after_the_dashes_is_for_the_run_and_not_for_pytest(nox, calls, named):
    assert nox("-s", CELL, "--", "-k", "sum", *named, "-x").returncode == 0
    [call] = calls()
    assert call["arguments"][-5:] == ["--suite=torch-c10d", "--", "-k", "sum", "-x"]


def test_a_name_without_values_runs_each_cell_once_in_one_run(nox, calls):
    assert nox("-s", "dist").returncode == 0
    assert len({tuple(call["arguments"]) for call in calls()}) == len(calls()) == 3
    assert len({call["ALLRANKS_RUN_ID"] for call in calls()}) == 1


def test_sessions_at_the_same_time_are_one_run(nox, calls):
    assert nox("-j", "2", "-s", "dist").returncode == 0
    assert len(calls()) == 3
    assert len({(call["ALLRANKS_RUN_ID"], call["ALLRANKS_INVOCATION_ID"]) for call in calls()}) == 1


def test_two_calls_of_nox_are_two_parties_even_in_one_run(nox, calls, monkeypatch):
    monkeypatch.setenv("ALLRANKS_RUN_ID", "ci-123")
    nox("-s", CELL)
    nox("-s", CELL)
    assert [call["ALLRANKS_RUN_ID"] for call in calls()] == ["ci-123", "ci-123"]
    assert len({call["ALLRANKS_INVOCATION_ID"] for call in calls()}) == 2


def test_two_calls_of_nox_are_two_runs(nox, calls):
    nox("-s", CELL)
    nox("-s", CELL)
    assert len({call["ALLRANKS_RUN_ID"] for call in calls()}) == 2


def test_a_version_of_torch_is_in_signatures_tags_and_prefixes(nox, repository, calls):
    matrix = MATRIX.replace("[matrix]", '[matrix]\ntorch = ["2.13.0", "2.14.1"]').replace('torch = "2.13.0"', "")
    (repository / "matrix.toml").write_text(matrix)
    listed = nox("--list", "--json")
    cell = next(entry for entry in json.loads(listed.stdout) if entry["name"] == "dist")
    assert cell["call_spec"]["torch"] == "2.13.0"
    assert "torch2.13.0" in cell["tags"]
    assert nox("-s", CELL).returncode == 0
    assert nox("-s", f"{CELL[:-1]}, torch='2.14.1')").returncode == 0
    where = "--where=backend=gloo,world_size=2,gpu_count=0,init_method=env"
    assert [call["arguments"][1] for call in calls()] == [where, f"{where},torch=2.14.1"]


def test_tags_choose_cells(nox, calls):
    nox("-t", "world2")
    assert [call["arguments"][1].split(",")[0] for call in calls()] == ["--where=backend=gloo", "--where=backend=nccl"]


def test_a_run_that_fails_fails_the_session(nox, calls, monkeypatch):
    monkeypatch.setenv("EXIT_CODE", "5")
    done = nox("-s", CELL)
    assert done.returncode == 1
    assert "failed with exit code 5" in done.stderr
    assert len(calls()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no matrix file."),
        ("[matrix", "matrix.toml"),
        (MATRIX.replace('"nccl"]', '"ncll"]'), "nccl"),
    ],
    ids=["missing", "no TOML", "unknown backend"],
)
def test_a_broken_matrix_file_is_a_message_and_exit_code_2(nox, repository, text, message):
    (repository / "matrix.toml").unlink()
    if text is not None:
        (repository / "matrix.toml").write_text(text)
    done = nox("--list")
    assert done.returncode == 2
    assert "allranks: error: " in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_matrix_file_elsewhere_is_named_in_the_noxfile(nox, repository):
    (repository / "sub" / "suite").mkdir(parents=True)
    (repository / "matrix.toml").rename(repository / "sub" / "matrix.toml")
    (repository / "noxfile.py").write_text(NOXFILE.replace("register()", "register('sub')"))
    assert CELL in nox("--list").stdout


def test_a_session_runs_the_matrix_file_that_it_was_made_from(nox, repository, calls):
    recording = (repository / "noxfile.py").read_text()
    (repository / "sub" / "suite").mkdir(parents=True)
    (repository / "sub" / "matrix.toml").write_text(MATRIX.replace("[1, 2]", "[2]"))
    (repository / "noxfile.py").write_text(recording.replace("register()", "register('sub')"))
    assert nox("-s", "dist(backend='gloo')").returncode == 0
    [call] = calls()
    assert f"--matrix={repository / 'sub' / 'matrix.toml'}" in call["arguments"]


def test_json_among_the_arguments_of_pytest_runs_no_cell(nox, repository):
    (repository / "noxfile.py").write_text(RECORDING_NOXFILE.replace("RECORDER", repr(str(repository))))
    assert "Running session dist" not in nox("--", "--json").stderr


LARGE = """\
[matrix]
backend = ["gloo"]
world_size = [{sizes}]
init_method = ["env", "tcp", "file"]

[suites.tiny]
path = "suite"

[images.all]
torch = "2.13.0"
"""


def test_thousands_of_cells_are_listed_within_seconds(nox, repository):
    """With a session for each cell, nox would take too long."""
    (repository / "matrix.toml").write_text(LARGE.format(sizes=", ".join(map(str, range(1, 2001)))))
    began = time.monotonic()
    done = nox("--list")
    assert time.monotonic() - began < 20
    assert done.returncode == 0
    assert "- dist -> the whole matrix: 6,000 cells" in done.stdout
    assert "- dist(backend='gloo', world_size=2000) -> gloo, 2,000 ranks: 3 cells" in done.stdout


def test_a_large_matrix_still_runs_as_a_whole(nox, repository, calls):
    (repository / "matrix.toml").write_text(LARGE.format(sizes=", ".join(map(str, range(1, 2001)))))
    nox("-s", "dist")
    assert [call["arguments"][:2] for call in calls()] == [["run", f"--matrix={repository / 'matrix.toml'}"]]


def test_listing_needs_the_standard_library_and_nox_alone():
    program = (
        "import sys; before = set(sys.modules); import nox; import allranks.nox\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "nox" in loaded
    assert not {"docker", "junitparser", "requests", "torch", "pytest"} & loaded


def test_a_session_repeats_tests_with_the_arguments_of_the_command(nox, calls, repository):
    pytest.importorskip("allranks.plugins.stress.hooks")
    done = nox("-s", "stress", "--", "gloo-w2", "--count", "5", "--", "-k", "x")
    assert done.returncode == 0, done.stderr
    [call] = calls()
    of_matrix = f"--matrix={repository / 'matrix.toml'}"
    assert call["arguments"] == ["stress", of_matrix, "gloo-w2", "--count", "5", "--", "-k", "x"]


BARE = """
import sys
for name in ("pluggy", "docker", "rich", "pynvml", "junitparser", "pytest", "torch"):
    sys.modules[name] = None  # an import of it fails
from allranks import nox as sessions
sessions._is_installed = lambda: False
sessions.ensure_environment = lambda recipe, tell: "the environment"
print(sessions.orchestrator()[0])
"""


def test_a_bare_nox_can_make_the_environment_of_allranks():
    source = str(Path(allranks.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", BARE],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("the environment\n", "")
