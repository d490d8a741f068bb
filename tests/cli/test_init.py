"""``allranks init``: what it finds, writes, and does not change."""

import os
import sys
import tomllib
from pathlib import Path

import pytest

from allranks.cli import init
from allranks.cli.init import Repository, inspect_repository, matrix_text
from allranks.matrix.declaration import load

FIRST_TEST = "tests/distributed/test_all_reduce.py"
HERE = Repository(folder="tests/distributed", engine=("process", "no Docker daemon"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, on a host without GPUs and Docker."""
    folder = tmp_path / "new"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(init, "_engine", lambda: HERE.engine)
    monkeypatch.setattr(init, "_gpus", lambda: 0)
    return folder


@pytest.fixture
def write(folder):
    def write(files):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    return write


def test_an_empty_folder_gets_three_files_that_plan_accepts(allranks, folder):
    code, out, err = allranks("init")
    assert code == 0
    names = ["matrix.toml", "noxfile.py", FIRST_TEST, ".gitignore"]
    assert out.splitlines() == [f"wrote {name}" for name in names]
    assert "Next: allranks plan, then allranks run" in err
    assert "Engine: process (no Docker daemon)" in err
    assert [cell.id for cell in load(folder).cells] == ["gloo-w1-g0-env", "gloo-w2-g0-env"]
    assert allranks("plan")[0] == 0
    compile((folder / FIRST_TEST).read_text(), FIRST_TEST, "exec")
    compile((folder / "noxfile.py").read_text(), "noxfile.py", "exec")


def test_the_classification_of_test_files_is_printed(allranks, write):
    odd = {f"odd/test_{number:02}.py": "import os\nos.environ['WORLD_SIZE']\n" for number in range(22)}
    write({**odd, "spawn/test_a.py": "from torch.multiprocessing import spawn\n", "test_plain.py": ""})
    assert allranks("init")[2].partition("noxfile")[0].splitlines() == [
        "24 test files:",
        "    1 in suites.spawn: these tests start processes",
        "    1 in no suite: not distributed",
        "    22 in no suite, not recognized: they mention ranks, but it is unclear what starts them",
        *(f"        {name}" for name in list(odd)[:20]),
        "        and 2 more",
    ]


def test_another_folder_can_be_given(allranks, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert allranks("init", "new")[0] == 0
    assert (folder / "matrix.toml").exists()
    code, _, err = allranks("init", "nowhere")
    assert (code, "There is no folder nowhere" in err) == (2, True)


def test_a_dry_run_prints_the_files_and_writes_nothing(allranks, folder):
    code, out, _ = allranks("init", "--dry-run")
    assert code == 0
    for name in ("matrix.toml", "noxfile.py", FIRST_TEST):
        assert f"--- {name}\n" in out
    assert "[suites.distributed]" in out
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("present", "named"),
    [
        ("matrix.toml", "matrix.toml"),
        (FIRST_TEST, FIRST_TEST),
        ("pyproject.toml", "[tool.allranks] in pyproject.toml"),
    ],
)
def test_nothing_is_written_where_a_file_exists_unless_forced(allranks, folder, write, present, named):
    text = "[tool.allranks.matrix]\n"
    write({present: text})
    code, out, err = allranks("init")
    assert (code, out) == (2, "")
    assert f"already has {named}. Nothing was written" in err
    assert [path.name for path in folder.rglob("*") if path.is_file()] == [present.rpartition("/")[2]]
    assert (folder / present).read_text() == text
    assert allranks("init", "--force")[0] == 0
    assert allranks("plan")[0] == 0


@pytest.mark.parametrize("arguments", [(), ("--force",)])
def test_a_noxfile_is_never_touched(allranks, folder, write, arguments):
    write({"noxfile.py": "# mine\n"})
    code, out, err = allranks("init", *arguments)
    assert (code, "noxfile" in out) == (0, False)
    assert "add to it:\n    # /// script\n" in err
    assert f'    # dependencies = ["nox", "allranks @ {ROOT.as_uri()}"]\n' in err
    assert "    from allranks.nox import register\n" in err
    assert (folder / "noxfile.py").read_text() == "# mine\n"


def test_a_folder_that_may_not_be_written_is_an_error(allranks, folder):
    (folder / "tests").write_text("")
    code, _, err = allranks("init")
    assert (code, "cannot be written" in err) == (2, True)


def test_a_path_that_is_not_utf8_is_an_error(allranks, folder):
    tests = folder / os.fsdecode(b"t\xff")
    tests.mkdir()
    (tests / "test_x.py").write_text("import torch.distributed as dist\n\ndef test_x(): dist.init_process_group()\n")
    code, _, err = allranks("init")
    assert (code, "not UTF-8" in err, (folder / "matrix.toml").exists()) == (2, True, False)


@pytest.mark.parametrize(
    ("files", "attribute", "value"),
    [
        ({"pyproject.toml": "[project]\nname = 'x'\n"}, "has_project", True),
        ({"pyproject.toml": "[build-system]\nrequires = []\n"}, "has_project", True),
        ({"setup.py": ""}, "has_project", True),
        ({"pyproject.toml": "[tool.ruff]\n"}, "has_project", False),
        ({"pyproject.toml": "[project"}, "has_project", False),
        ({"requirements.txt": "", "requirements-test.txt": ""}, "requirements", "requirements-test.txt"),
        ({"requirements/test.txt": ""}, "requirements", "requirements/test.txt"),
        ({"test/test_x.py": ""}, "folder", "test/distributed"),
        ({"tests/test_x.py": "", "test/test_x.py": ""}, "folder", "tests/distributed"),
        ({"tests/test_x.py": "import torch.distributed as dist"}, "folder", ""),
        ({"pytest.ini": "[pytest]\naddopts = -ra\n  -n auto\n"}, "uses_xdist", True),
        ({"pyproject.toml": "[tool.pytest.ini_options]\naddopts = ['-ra', '-n4']\n"}, "uses_xdist", True),
        ({"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--numprocesses=4'\n"}, "uses_xdist", True),
        ({"tox.ini": "[testenv]\ncommands = pytest -n 4\n"}, "uses_xdist", False),
        ({"pytest.ini": "[pytest]\naddopts = -ra --no-header\n"}, "uses_xdist", False),
    ],
)
def test_the_matrix_file_reflects_the_repository(folder, write, files, attribute, value):
    write(files)
    found = inspect_repository(folder)
    assert getattr(found, attribute) == value
    for name, text in init.contents(found).items():
        write({name: text})
    load(folder)


def test_the_installed_torch_and_its_interpreter_are_found(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    found = inspect_repository(folder)
    assert found.torch == "2.13.0"
    assert found.python == "python3"
    monkeypatch.setenv("PATH", "/nowhere")
    assert inspect_repository(folder).python == ""
    monkeypatch.setattr(sys, "prefix", str(folder / ".venv"))
    assert inspect_repository(folder).python == ".venv/bin/python"


@pytest.mark.parametrize(
    ("version", "found"),
    [
        (
            "__version__ = '2.14.1+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n",
            ("2.14.1", False),
        ),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", ("2.13.0", True)),
        ("__version__ = '2.13.0'\nhip: str = '7.1'\n", ("2.13.0", False)),
        ("", ("", False)),
    ],
)
def test_the_kind_of_torch_is_read_without_importing_it(tmp_path, monkeypatch, version, found):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError")
    (tmp_path / "torch" / "version.py").write_text(version)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert init.installed_torch() == found


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        ({}, 2),
        ({"gpus": 1}, 3),
        ({"gpus": 8}, 4),
        ({"python": "python3", "torch": "2.14.1", "is_cpu_only": True}, 2),
        ({"python": "python3", "torch": "2.14.1", "missing": "pytest"}, 2),
        ({"engine": ("docker", "a Docker daemon answers")}, 2),
    ],
)
def test_the_matrix_file_is_always_valid(folder, changes, cells):
    found = Repository(**{"folder": "tests/distributed", **changes})
    (folder / "tests" / "distributed").mkdir(parents=True)
    (folder / "matrix.toml").write_text(matrix_text(found))
    expansion = load(folder)
    assert len(expansion.cells) == cells
    assert expansion.matrix.process.python == (None if "missing" in changes else changes.get("python"))
    assert expansion.matrix.warnings == ()


def test_the_commented_lines_are_valid_too(folder):
    (folder / "tests" / "distributed").mkdir(parents=True)
    lines = matrix_text(HERE).splitlines()
    start = next(number for number, line in enumerate(lines) if "For NCCL" in line)
    end = lines.index("[suites.distributed]")
    shown = [line.removeprefix("#").removeprefix(" ") for line in lines[start + 1 : end]]
    text = "\n".join([*lines[:start], *shown, *lines[end:]]).replace('["gloo"]', '["gloo", "nccl"]')
    (folder / "matrix.toml").write_text(text)
    assert [cell.id for cell in load(folder).cells] == [
        "gloo-w1-g0-env",
        "gloo-w2-g0-env",
        "nccl-w1-g1-env",
        "nccl-w2-g2-env",
    ]
    assert tomllib.loads(text)["matrix"]["gpu_count"] == [0, 1, 2]


EXISTING = {
    "tests/test_ranks.py": "def test_a(process_group):\n    pass\n",
    "tests/torchrun/test_group.py": "import torch.distributed as dist\ndist.init_process_group()\n",
    "tests/torchrun/test_more.py": "import torch.distributed as dist\ndist.init_process_group()\n",
    "tests/test_class.py": (
        "from torch.testing._internal.common_distributed import MultiProcessTestCase\n"
        "class TestA(MultiProcessTestCase):\n    pass\n"
    ),
    'tests/ü"a_test.py': "import torch.multiprocessing as mp\nmp.spawn(f)\n",
    "tests/test_spawn.py": "import torch.multiprocessing as mp\nmp.spawn(f)\n",
}


def test_existing_tests_are_suites_with_the_keys_that_they_need(allranks, folder, write):
    write(EXISTING)
    code, out, _ = allranks("init")
    assert (code, FIRST_TEST in out) == (0, False)
    matrix = load(folder).matrix
    suites = {
        name: (sorted(map(str, suite.paths)), suite.process_group, suite.launches_ranks)
        for name, suite in matrix.suites.items()
    }
    assert suites == {
        "distributed": (["tests/test_ranks.py"], None, False),
        "torchrun": (["tests/torchrun"], False, False),
        "torch-classes": (["tests/test_class.py"], None, False),
        "spawn": (["tests/test_spawn.py", 'tests/ü"a_test.py'], None, True),
    }
    assert {suite.name: suite.when.source for suite in matrix.suites.values() if suite.when} == dict.fromkeys(
        ("torch-classes", "spawn"), "world_size == 2"
    )
    assert matrix.images["default"].packages == ("expecttest", "numpy")


def test_an_interpreter_without_a_package_of_the_tests_is_not_used(allranks, folder, write, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    there = init.importlib.util.find_spec
    monkeypatch.setattr(init.importlib.util, "find_spec", lambda name: None if name == "expecttest" else there(name))
    write({"tests/test_ranks.py": EXISTING["tests/test_ranks.py"]})
    assert allranks("init")[0] == 0
    assert load(folder).matrix.process.python == "python3"
    write({"tests/test_class.py": EXISTING["tests/test_class.py"]})
    code, _, err = allranks("init", "--force")
    assert (code, f"because {sys.executable} lacks expecttest" in err) == (0, True)
    assert "To use it instead, install expecttest, and run allranks init --force." in err
    assert load(folder).matrix.process.python is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "results/\n.nox/\n"),
        ("*.pyc", "*.pyc\nresults/\n.nox/\n"),
        ("/results\n.nox\n", "/results\n.nox\n"),
        ("my-results/\n.nox/\n", "my-results/\n.nox/\nresults/\n"),
    ],
)
def test_gitignore_has_the_folders_of_runs(allranks, folder, write, before, after):
    if before is not None:
        write({".gitignore": before})
    assert allranks("init")[0] == 0
    assert (folder / ".gitignore").read_text() == after


ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Installed:
    """An installed distribution with this direct_url.json (PEP 610)."""

    def __init__(self, folder, record):
        self.folder, self.record = folder, record

    def locate_file(self, name):
        return self.folder / name

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.record


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """``installed(record)``: allranks is in site-packages, not in a checkout."""
    package = tmp_path / "lib" / "site-packages" / "allranks"
    package.mkdir(parents=True)
    monkeypatch.setattr(init, "package_folder", lambda: package)

    def make(record):
        another = Installed(tmp_path / "elsewhere", '{"url": "https://h/other", "vcs_info": {"commit_id": "0"}}')
        there = [another] if record is None else [another, Installed(package.parent, record)]
        monkeypatch.setattr(init.importlib.metadata, "distributions", lambda name: iter(there if name else ()))

    return make


def dependencies(text):
    """The dependencies in the metadata of a script (PEP 723)."""
    lines = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# dependencies")]
    return tomllib.loads("\n".join(lines))["dependencies"]


def test_a_noxfile_installs_the_checkout_that_wrote_it(allranks, folder):
    code, _, err = allranks("init")
    assert code == 0
    assert dependencies((folder / "noxfile.py").read_text()) == ["nox", f"allranks @ {ROOT.as_uri()}"]
    assert "noxfile.py installs allranks from a path on this machine" in err


FOUND = {
    "a checkout": ('{"url": "%(here)s", "dir_info": {}}', "%(here)s"),
    "an editable checkout": ('{"url": "%(here)s", "dir_info": {"editable": true}}', "%(here)s"),
    "a wheel": ('{"url": "%(here)s/a%%20b.whl", "archive_info": {}}', "%(here)s/a%%20b.whl"),
    "a commit": (
        f'{{"url": "https://h/o/allranks", "vcs_info": {{"vcs": "git", "commit_id": "{COMMIT}"}}}}',
        f"git+https://h/o/allranks@{COMMIT}",
    ),
    "a wheel elsewhere": (
        '{"url": "https://h/a.whl", "archive_info": {"hashes": {"sha256": "abc"}}}', "https://h/a.whl#sha256=abc",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("record", "address"), FOUND.values(), ids=list(FOUND))
def test_a_noxfile_installs_from_where_allranks_was_installed(allranks, folder, installed, record, address):
    here = folder.parent / "here"
    here.mkdir()
    (here / "a b.whl").touch()
    installed(record % {"here": here.as_uri()})
    assert allranks("init")[0] == 0
    source = address % {"here": here.as_uri()}
    assert dependencies((folder / "noxfile.py").read_text()) == ["nox", f"allranks @ {source}"]


UNKNOWN = {
    "no distribution": None,
    "an index": "",
    "a checkout that is gone": '{"url": "file:///nowhere/allranks", "dir_info": {}}',
    "a wheel that is gone": '{"url": "file:///nowhere/allranks.whl", "archive_info": {}}',
    "an archive without a hash": '{"url": "https://h/a.whl", "archive_info": {}}',
    "a repository without a commit": '{"url": "https://h/o/allranks", "vcs_info": {"vcs": "git"}}',
    "a damaged record": "{",
    "a record that is a list": "[]",
    "an empty record": "{}",
}


@pytest.mark.parametrize("record", UNKNOWN.values(), ids=list(UNKNOWN))
def test_an_unknown_source_is_an_error_with_a_remedy(allranks, folder, installed, record):
    installed(record)
    code, out, err = allranks("init")
    assert (code, out) == (2, "")
    assert "--source CHECKOUT, --source WHEEL, or --source git+https://...@COMMIT" in err
    assert list(folder.iterdir()) == []
    (folder / "noxfile.py").write_text("")
    assert allranks("init")[0] == 0, "no file has to name it"


def test_a_source_is_rejected_if_there_is_a_noxfile(allranks, folder):
    (folder / "noxfile.py").write_text("# mine\n")
    code, _, err = allranks("init", "--source", str(ROOT))
    assert (code, "only for a new noxfile.py" in err) == (2, True)
    assert [path.name for path in folder.iterdir()] == ["noxfile.py"]


def test_a_given_source_is_used(allranks, folder, installed, tmp_path, monkeypatch):
    installed(None)
    wheel = tmp_path / "allranks-1-py3-none-any.whl"
    wheel.touch()
    monkeypatch.chdir(tmp_path)
    for given, address in {
        str(ROOT): ROOT.as_uri(),
        "allranks-1-py3-none-any.whl": wheel.as_uri(),
        f"git+https://h/o/allranks@{COMMIT}": f"git+https://h/o/allranks@{COMMIT}",
        f"git+ssh://git@h/o/allranks@{COMMIT}": f"git+ssh://git@h/o/allranks@{COMMIT}",
        "https://h/allranks-1-py3-none-any.whl": "https://h/allranks-1-py3-none-any.whl",
    }.items():
        code, out, _ = allranks("init", "--dry-run", "--source", given, str(folder))
        assert code == 0
        assert dependencies(out) == ["nox", f"allranks @ {address}"]


@pytest.mark.parametrize(
    "given", ["allranks", "allranks==0.1", "", ".", "nowhere", "http://h/a.whl", "git+https://h/a b"]
)
def test_a_source_without_allranks_is_rejected(allranks, folder, given):
    code, _, err = allranks("init", "--source", given)
    assert (code, "is neither a checkout of allranks nor a wheel" in err) == (2, True)
    assert list(folder.iterdir()) == []
