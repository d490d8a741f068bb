import fcntl
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from allranks.errors import EnvironmentBuildError
from allranks.images import environments
from allranks.images.environments import EnvironmentRecipe, ensure_environment, run_pip_of
from allranks.user_cache import cache_folder

RECIPE = EnvironmentRecipe(name="e", arguments=("torch==1",), content=("text",))

MAKE = """
import sys
from pathlib import Path
from allranks.images import environments

def create(folder, below):
    (folder / "bin").mkdir(parents=True)

def install(folder, recipe, progress):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")

environments._create_empty, environments._install = create, install
print(environments.ensure_environment(environments.EnvironmentRecipe(name="e", arguments=("x",)), print))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def made(monkeypatch):
    """The creations of environments, which are empty folders."""
    calls = []
    monkeypatch.setattr(environments, "_create_empty", lambda folder, _below: (folder / "bin").mkdir(parents=True))
    monkeypatch.setattr(environments, "_install", lambda folder, recipe, _progress: calls.append((folder, recipe)))
    return calls


@pytest.fixture
def pip(tmp_path):
    """An interpreter whose pip is a shell script."""

    def write(script: str) -> Path:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        return python

    return write


def ignore(_line):
    pass


def test_cache_follows_the_xdg_specification(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache" / "allranks"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/x")
    assert cache_folder() == Path("/home/x/.cache/allranks")


def test_key_changes_with_arguments_content_and_interpreter(monkeypatch):
    others = [
        EnvironmentRecipe(name="e", arguments=("torch==2",), content=("text",)),
        EnvironmentRecipe(name="e", arguments=("torch==1",), content=("other",)),
        EnvironmentRecipe(name="e", arguments=("torch==1", "text"), content=()),
    ]
    keys = {RECIPE.key, *(other.key for other in others)}
    monkeypatch.setattr(sys, "version", "4.0")
    assert len({*keys, RECIPE.key}) == 5


def test_key_changes_with_the_configuration_of_pip_and_not_with_a_login(monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    before = RECIPE.key
    monkeypatch.setenv("PIP_FIND_LINKS", "https://me:old@example.org/wheels")
    after = RECIPE.key
    monkeypatch.setenv("PIP_FIND_LINKS", "https://me:new@example.org/wheels")
    assert before != after == RECIPE.key


def test_links_relative_to_another_folder_are_another_key(monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels")
    assert replace(RECIPE, folder=Path("/one")).key != replace(RECIPE, folder=Path("/two")).key


def test_logins_are_not_printed(made, capsys):  # noqa: ARG001 - made in no time
    ensure_environment(EnvironmentRecipe(name="e", file="--index-url https://me:s3cret@x/simple\ntorch==1\n"), print)
    assert capsys.readouterr().out == "creating the e environment (--index-url https://****@x/simple torch==1), once\n"


def test_an_environment_is_made_on_first_use_and_never_again(made):
    first = ensure_environment(RECIPE, ignore)
    assert ensure_environment(RECIPE, ignore) == first
    assert len(made) == 1
    assert first == cache_folder() / "environments" / f"e-{RECIPE.key}" / "bin" / "python"


def test_making_one_is_announced(made, capsys):  # noqa: ARG001 - made in no time
    ensure_environment(RECIPE, print)
    assert capsys.readouterr().out == "creating the e environment (torch==1), once\n"


def test_an_incomplete_environment_is_recreated(made):
    python = ensure_environment(RECIPE, ignore)
    (python.parents[1] / ".complete").unlink()
    (python.parents[1] / "half").touch()
    ensure_environment(RECIPE, ignore)
    assert len(made) == 2
    assert not (python.parents[1] / "half").exists()


def test_an_environment_that_failed_is_tried_again(made, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(environments, "_install", lambda *_: run_pip_of(Path("/bin/false"), (), "x", ignore))
        with pytest.raises(EnvironmentBuildError):
            ensure_environment(RECIPE, ignore)
    ensure_environment(RECIPE, ignore)
    assert len(made) == 1


def test_an_environment_is_made_under_a_lock(monkeypatch):
    held = []

    def create(folder, _below):
        with folder.with_name(f"{folder.name}.lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(True)
        folder.mkdir()

    monkeypatch.setattr(environments, "_create_empty", create)
    monkeypatch.setattr(environments, "_install", lambda *_: None)
    ensure_environment(RECIPE, ignore)
    assert held == [True]


def test_an_environment_that_was_made_while_one_waited_is_taken(made, monkeypatch):
    @contextmanager
    def locked(folder):
        folder.mkdir(parents=True)
        (folder / ".complete").touch()
        yield

    monkeypatch.setattr(environments, "locked", locked)
    ensure_environment(RECIPE, ignore)
    assert made == []


@pytest.mark.thorough
def test_two_processes_make_an_environment_once(tmp_path):
    command = [sys.executable, "-c", MAKE, str(tmp_path / "log")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate()[0].splitlines()[-1] for process in running}
    assert len(answers) == 1
    assert (tmp_path / "log").read_text() == "made\n"


def test_a_cache_that_cannot_be_written_is_an_error_that_names_the_variable(tmp_path):
    (tmp_path / "cache").touch()
    with pytest.raises(EnvironmentBuildError) as error:
        ensure_environment(RECIPE, ignore)
    assert "XDG_CACHE_HOME" in error.value.remedy


def test_a_python_without_venv_is_an_error_that_names_the_package(monkeypatch, pip, tmp_path):
    monkeypatch.setattr(sys, "executable", str(pip("echo ensurepip is not available; exit 1")))
    with pytest.raises(EnvironmentBuildError, match="virtual environment") as error:
        environments._create_empty(tmp_path / "e", None)
    assert error.value.why == "ensurepip is not available"
    assert "python3-venv" in error.value.remedy


def test_pip_of_the_environment_gets_the_arguments(pip, tmp_path):
    run_pip_of(pip(f'echo "$@" > {tmp_path}/arguments'), ["numpy", "--index", "x"], "It", ignore)
    assert (tmp_path / "arguments").read_text() == "-m pip install --no-input numpy --index x\n"


def test_only_downloads_and_builds_of_pip_are_reported(pip):
    lines = []
    script = "echo Looking in indexes; echo Downloading torch.whl; echo '  Processing'; echo Installing collected x"
    run_pip_of(pip(script), [], "It", lines.append)
    assert lines == ["Downloading torch.whl", "Installing collected x"]


def test_long_lines_of_pip_are_cut(pip):
    lines = []
    run_pip_of(pip(f"echo Downloading {'x' * 300}"), [], "It", lines.append)
    assert len(lines[0]) == 100


def test_logins_in_the_output_of_pip_are_not_printed(pip):
    lines = []
    with pytest.raises(EnvironmentBuildError) as error:
        run_pip_of(
            pip("echo Downloading https://me:s3cret@x/y.whl; echo ERROR: https://me:s3cret@x; exit 1"),
            [],
            "It",
            lines.append,
        )
    assert (lines, error.value.why) == (["Downloading https://****@x/y.whl"], "https://****@x")


def test_errors_of_pip_are_the_reason(pip):
    script = "echo noise; echo 'ERROR: No matching distribution found for torch==9' >&2; exit 1"
    with pytest.raises(EnvironmentBuildError, match="It cannot be created: pip failed") as error:
        run_pip_of(pip(script), [], "It", ignore)
    assert error.value.why == "No matching distribution found for torch==9"


def test_a_pip_that_fails_without_a_word_of_error_shows_its_last_lines(pip):
    with pytest.raises(EnvironmentBuildError) as error:
        run_pip_of(pip("seq 100; exit 1"), [], "It", ignore)
    assert error.value.why.splitlines() == [str(number) for number in range(86, 101)]


def test_an_interrupted_pip_does_not_go_on_writing(pip, tmp_path):
    def interrupt(line):
        raise KeyboardInterrupt(line)

    python = shlex.quote(sys.executable)
    script = f"echo $$ > {tmp_path}/pid; echo Downloading x; exec {python} -c 'import signal; signal.pause()'"
    with pytest.raises(KeyboardInterrupt):
        run_pip_of(pip(script), [], "It", interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGCONT)


@pytest.fixture
def hello(tmp_path):
    """The environment of a small project."""
    package = tmp_path / "hello"
    package.mkdir()
    (package / "backend.py").write_text(
        "import zipfile\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        "    with zipfile.ZipFile(f'{folder}/hello-1-py3-none-any.whl', 'w') as wheel:\n"
        "        wheel.writestr('hello.py', 'VALUE = 1')\n"
        "        wheel.writestr('hello-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: hello\\nVersion: 1\\n')\n"
        "        wheel.writestr('hello-1.dist-info/WHEEL',"
        " 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "        wheel.writestr('hello-1.dist-info/RECORD', '')\n"
        "    return 'hello-1-py3-none-any.whl'\n"
    )
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "hello"\nversion = "1"\n'
    )
    return EnvironmentRecipe(name="real", arguments=("--no-index", str(package)))


def answer(python):
    code = "import hello; print(hello.VALUE)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout


def test_a_real_environment_runs_what_was_installed_into_it(hello, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # without uv
    python = ensure_environment(hello, ignore)
    assert answer(python) == "1\n"
    assert {path.name for path in python.parents[1].iterdir()} <= {
        "bin",
        "include",
        "lib",
        "lib64",
        "pyvenv.cfg",
        ".complete",
    }


@pytest.fixture
def uv(tmp_path, monkeypatch):
    """A fake uv that records its arguments."""

    def write(script):
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/uv").write_text(
            f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nenv > {tmp_path}/environ\n{script}\n'
        )
        (tmp_path / "bin/uv").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    return write


@pytest.mark.thorough
def test_uv_installs_the_wheels_of_pip_without_an_index(hello, uv, tmp_path, monkeypatch):
    monkeypatch.setenv("UV_INDEX_URL", "https://example.org/simple")
    uv("exit 0")
    python = ensure_environment(hello, ignore)
    arguments = (tmp_path / "arguments").read_text()
    assert arguments.startswith("pip install --no-config --offline --cache-dir ")
    assert arguments.endswith(" hello==1\n")
    assert f"--python {python} --no-index --no-deps --find-links" in arguments
    assert "UV_INDEX_URL" not in (tmp_path / "environ").read_text()


@pytest.mark.thorough
def test_pip_does_it_where_uv_fails(hello, uv):
    uv("exit 2")
    assert answer(ensure_environment(hello, ignore)) == "1\n"


def test_uv_changes_no_key(uv):
    before = RECIPE.key
    uv("exit 0")
    assert RECIPE.key == before


@pytest.mark.thorough
@pytest.mark.usefixtures("asks_pip")
def test_a_section_of_pip_install_is_left_to_pip_install(hello, uv, tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text("[install]\nno-index = 1\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    uv("exit 0")
    assert answer(ensure_environment(hello, ignore)) == "1\n"
    assert not (tmp_path / "arguments").exists()
