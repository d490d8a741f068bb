import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.engines.base import FileCopy
from allranks.engines.package import bytecode_of

PROGRAM = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
compiled = []
sys.addaudithook(lambda event, arguments: compiled.append(str(arguments[1])) if event == "compile" else None)
import package.inner.module as module
print(module.WORD, [name for name in compiled if sys.argv[1] in name])
"""


@pytest.fixture
def package(tmp_path):
    """The copies of a package with a subpackage."""
    folder = tmp_path / "source" / "package"
    (folder / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py"):
        (folder / name).write_text("")
    (folder / "inner" / "module.py").write_text("WORD = 'one'\n")
    return folder


@pytest.fixture
def run_job(tmp_path, package):
    """Import a copied package with its bytecode; return its output, and the modules that Python compiled."""
    job = tmp_path / "job"

    def run():
        copies = (FileCopy(source=package, target=Path("package")),)
        shutil.rmtree(job, ignore_errors=True)
        for copy in (*copies, *bytecode_of(copies, tmp_path / "cache")):
            shutil.copytree(copy.source, job / copy.target, copy_function=shutil.copyfile, dirs_exist_ok=True)
        return look()

    def look():
        command = [sys.executable, "-c", PROGRAM, str(job)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    run.look = look
    return run


def test_nothing_of_a_package_is_compiled_in_a_job(run_job):
    assert run_job() == "one []"


def test_what_is_made_once_is_taken_again(run_job, monkeypatch):
    run_job()
    monkeypatch.setattr("py_compile.compile", lambda *_, **__: pytest.fail("compiled again"))
    assert run_job() == "one []"


def test_a_changed_module_is_compiled_again(run_job, package):
    run_job()
    (package / "inner" / "module.py").write_text("WORD = 'two'\n")
    assert run_job() == "two []"


def test_bytecode_of_another_source_counts_for_nothing(run_job, tmp_path):
    run_job()
    module = tmp_path / "job" / "package" / "inner" / "module.py"
    state = module.stat()
    module.write_text("WORD = 'six'\n")
    os.utime(module, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert run_job.look() == f"six ['{module}']"


def test_a_cache_that_cannot_be_written_is_done_without(run_job, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    assert run_job().startswith("one [")


def test_what_no_run_asked_for_in_weeks_is_forgotten(run_job, package, tmp_path):
    run_job()
    [old] = (tmp_path / "cache").iterdir()
    os.utime(old, (0, 0))
    (package / "inner" / "module.py").write_text("WORD = 'two'\n")
    run_job()
    assert not old.exists()
