"""The markers of services, which decide the session of a test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

COMMANDS = ("node", "slurmctld", "slurmd", "munged", "sbatch", "ch-run", "chromium", "act", "zsh", "cc", "c++")

PRESENT = """
import os
import sys
from types import SimpleNamespace

if len(sys.argv) > 1:
    import noxfile

    os.environ |= noxfile._without_services(SimpleNamespace(virtualenv=SimpleNamespace(location=sys.argv[1])))
sys.path.insert(0, "tests")
import services

print(*(name for name in services.SERVICES if not services.why_missing(name)))
"""

SUITE = """
import pytest

@pytest.mark.zsh
def test_a_shell(): pass

def test_anything(): pass
"""


@pytest.fixture
def machine(tmp_path):
    """The variables of a machine that has a command for every service, and the clients of the report."""
    commands, clients = tmp_path / "bin", tmp_path / "clients"
    commands.mkdir()
    for name in COMMANDS:
        (commands / name).write_text("#!/bin/sh\n")
        (commands / name).chmod(0o755)
    for name in ("EnricoMi+publish-unit-test-result-action", "mikepenz+action-junit-report", "dorny+test-reporter"):
        (clients / "actions" / name).mkdir(parents=True)
        (clients / "actions" / name / "fetched").touch()
    (clients / "installed").touch()
    no_index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}  # tests may use an index for their environments
    path = f"{commands}:{os.environ['PATH']}"
    return {**os.environ, **no_index, "PATH": path, "ALLRANKS_CLIENTS": str(clients)}


def test_nox_s_tests_has_no_service_where_the_machine_has_all(machine, tmp_path):
    def present(*arguments):
        command = [sys.executable, "-c", PRESENT, *arguments]
        return set(subprocess.check_output(command, cwd=TESTS.parent, env=machine, text=True).split())

    assert present() >= {"slurm", "browser", "node", "github", "act", "zsh"}
    assert present(str(tmp_path)) == set()


@pytest.fixture
def run(tmp_path):
    """Run pytest, with the hooks of this folder, on a test that needs a shell and one that needs nothing."""

    def pytest_on(*arguments, **variables):
        (tmp_path / "test_suite.py").write_text(SUITE)
        options = ("-p", "conftest", "-p", "no:cacheprovider", "-c", str(TESTS.parent / "pyproject.toml"))
        command = [sys.executable, "-m", "pytest", *options, *arguments, str(tmp_path / "test_suite.py")]
        environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(TESTS), **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return pytest_on


def test_a_test_whose_service_is_missing_is_skipped_and_names_it(run):
    code, output = run()
    assert "1 passed, 1 skipped" in output
    assert "needs zsh: there is no zsh on the PATH" in output
    assert "zsh:           1 skipped" in output
    assert code == 0


@pytest.mark.thorough
def test_a_test_whose_service_is_missing_fails_where_it_is_required(run):
    code, output = run(ALLRANKS_REQUIRE="docker zsh")
    assert "1 passed, 1 error" in output
    assert "needs zsh: there is no zsh on the PATH" in output
    assert code == 1


def test_a_requirement_that_is_no_service_is_a_usage_error(run):
    code, output = run(ALLRANKS_REQUIRE="docker podman")
    assert "ALLRANKS_REQUIRE names podman, which is no service. Services: docker, " in output
    assert "Traceback" not in output
    assert code == 4


@pytest.mark.thorough
@pytest.mark.parametrize(("which", "name"), [("integration", "test_a_shell"), ("not integration", "test_anything")])
def test_the_marker_of_a_service_makes_an_integration_test(run, which, name):
    code, output = run("-m", which, "--collect-only", "-q")
    assert [line.partition("::")[2] for line in output.splitlines() if "::" in line] == [name]
    assert code == 0
