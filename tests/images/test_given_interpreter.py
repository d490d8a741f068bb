"""``[process] python`` with packages: missing packages are installed in an environment above the interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.engines.process_environments import environment_of
from allranks.errors import EnvironmentBuildError
from allranks.matrix.model import Image, Process


@pytest.fixture
def links(tmp_path, make_wheel, monkeypatch):
    """The only wheels that pip can find."""
    folder = tmp_path / "links"
    for name, version in (("torch", "2.0"), ("torch", "3.0"), ("pytest", "9.0"), ("six", "1.0"), ("six", "2.0")):
        make_wheel(folder, name, version, files={f"{name}.py": f"VERSION = '{version}'\n"})
    make_wheel(folder, "wants_old", "1.0", requires=["torch<3"])
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def given(tmp_path, links):  # noqa: ARG001 - installs from there
    """The interpreter of an environment with torch 3.0 and six 1.0, and without pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "given"], check=True)
    python = tmp_path / "given/bin/python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "torch==3.0", "six==1.0"]
    subprocess.run(command, check=True)
    return python


@pytest.fixture
def environment(tmp_path, given, progress):
    def make(*packages, **keys):
        image = Image(name="cpu", torch="2.0", packages=packages, **keys)
        return environment_of(image, root=tmp_path, process=Process(python=str(given)), progress=progress)

    return make


def versions(made, *names):
    path = os.pathsep.join(map(str, made.python_path))
    code = "; ".join(f"import {name}; print({name}.VERSION)" for name in names)
    environ = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [made.python, "-c", code], env=environ, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.thorough
def test_what_the_interpreter_lacks_is_installed_above_it(environment, given):
    made = environment("six>=2")
    assert made.python == str(given)
    assert versions(made, "six", "torch", "pytest") == ["2.0", "3.0", "9.0"]
    assert versions(environment("six"), "six") == ["1.0"]
    [above] = made.python_path
    assert not list(above.glob("torch*"))


@pytest.mark.thorough
def test_a_package_that_requires_another_torch_is_an_error(environment):
    with pytest.raises(EnvironmentBuildError, match=r"torch==3\.0"):
        environment("wants_old")


@pytest.mark.thorough
def test_it_is_made_once_and_again_when_the_interpreter_has_other_packages(environment, given, progress):
    first = environment("six>=1")  # and pytest, which it lacks
    assert environment("six>=1") == first
    command = [sys.executable, "-m", "pip", "--python", str(given), "uninstall", "-q", "-y", "six"]
    subprocess.run(command, check=True)
    assert versions(environment("six>=1"), "six") == ["2.0"]
    assert sum("creating the above-python environment" in line for line in progress) == 2


@pytest.mark.thorough
def test_the_project_and_its_requirements_are_installed(environment, tmp_path):
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "hello"\nversion = "1"\n'
    )
    (folder / "backend.py").write_text(
        "import zipfile\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        "    with zipfile.ZipFile(f'{folder}/hello-1-py3-none-any.whl', 'w') as wheel:\n"
        "        wheel.writestr('hello.py', 'VERSION = 1')\n"
        "        wheel.writestr('hello-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: hello\\nVersion: 1\\n"
        "Requires-Dist: six>=2\\n')\n"
        "        wheel.writestr('hello-1.dist-info/WHEEL',"
        " 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "        wheel.writestr('hello-1.dist-info/RECORD', '')\n"
        "    return 'hello-1-py3-none-any.whl'\n"
    )
    assert versions(environment(project=Path("hello")), "hello", "six", "torch") == ["1", "2.0", "3.0"]


@pytest.mark.thorough
def test_a_requirements_file_is_installed(environment, tmp_path):
    (tmp_path / "requirements.txt").write_text("six==2.0\n")
    assert versions(environment(requirements=Path("requirements.txt")), "six") == ["2.0"]


def test_without_packages_it_is_used_as_it_is(environment, given, progress):
    made = environment()
    assert (made.python, made.python_path, progress) == (str(given), (), [])


@pytest.mark.thorough
def test_an_interpreter_that_has_all_of_them_is_used_as_it_is(environment, given, progress, tmp_path):
    command = [sys.executable, "-m", "pip", "--python", str(given), "install", "-q", "pytest"]
    subprocess.run(command, check=True)
    (tmp_path / "requirements.txt").write_text("# ours\nsix >= 1\n")
    made = environment("six<2", requirements=Path("requirements.txt"))
    assert (made.python, made.python_path, progress) == (str(given), (), [])
    assert len(environment("six>=2").python_path) == 1
    assert len(environment("six ; python_version > '3'").python_path) == 1, "pip decides"
