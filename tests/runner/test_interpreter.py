from pathlib import Path

import pytest

from allranks.engines import process_environments
from allranks.engines.process_environments import environment_of
from allranks.errors import EngineError, EnvironmentBuildError
from allranks.matrix.model import Image, Process

NO_PYTHON = Process()


@pytest.fixture
def recipes(monkeypatch):
    """The requested environments."""
    asked = []

    def ensure(recipe, _progress):
        asked.append(recipe)
        return Path("/env/bin/python")

    monkeypatch.setattr(process_environments, "ensure_environment", ensure)
    return asked


def test_the_interpreter_of_the_matrix_file_wins(tmp_path, lines, recipes):
    image = Image(name="cpu", torch="2.13.0")
    found = environment_of(image, root=tmp_path, process=Process(python="/opt/py"), progress=lines)
    assert (found.python, recipes) == ("/opt/py", [])


def test_an_interpreter_that_does_not_start_is_an_error_that_names_the_key(tmp_path, lines):
    image = Image(name="cpu", torch="2.13.0", packages=("numpy",))
    with pytest.raises(EnvironmentBuildError, match="/gone/python") as error:
        environment_of(image, root=tmp_path, process=Process(python="/gone/python"), progress=lines)
    assert "process.python" in error.value.remedy


def test_an_interpreter_in_the_repository_is_found_from_anywhere(tmp_path, lines):
    image = Image(name="cpu", torch="2.13.0")
    found = environment_of(image, root=tmp_path, process=Process(python=".venv/bin/python"), progress=lines)
    assert found.python == f"{tmp_path}/.venv/bin/python"


def test_an_interpreter_on_the_path_keeps_its_name(tmp_path, lines):
    image = Image(name="cpu", torch="2.13.0")
    assert environment_of(image, root=tmp_path, process=Process(python="python3"), progress=lines).python == "python3"


def test_a_finished_image_is_rejected_with_two_remedies(tmp_path, lines):
    with pytest.raises(EngineError) as error:
        environment_of(Image(name="own", image="a/b:1"), root=tmp_path, process=NO_PYTHON, progress=lines)
    assert "--engine docker" in error.value.remedy
    assert "process.python" in error.value.remedy


def test_an_environment_has_the_content_of_its_image(tmp_path, lines, recipes):
    (tmp_path / "requirements.txt").write_text("einops\n")
    image = Image(
        name="cpu", torch="2.13.0", packages=("numpy",), requirements=Path("requirements.txt"), index="https://x/whl"
    )
    found = environment_of(image, root=tmp_path, process=NO_PYTHON, progress=lines)
    [recipe] = recipes
    assert (found.python, found.python_path) == ("/env/bin/python", ())
    assert recipe.name == "torch-2.13.0"
    assert recipe.file.splitlines() == [
        "--index-url https://x/whl",
        f"--requirement {tmp_path}/requirements.txt",
        "torch==2.13.0",
        "pytest>=8",
        "numpy",
    ]


def test_changed_requirements_are_another_environment(tmp_path, lines, recipes):
    image = Image(name="cpu", torch="2.13.0", requirements=Path("requirements.txt"))
    for text in ("einops\n", "einops\nscipy\n"):
        (tmp_path / "requirements.txt").write_text(text)
        environment_of(image, root=tmp_path, process=NO_PYTHON, progress=lines)
    assert recipes[0].key != recipes[1].key


@pytest.mark.usefixtures("recipes")
def test_debian_packages_must_be_installed_on_the_host(tmp_path, lines):
    image = Image(name="cpu", torch="2.13.0", apt=("libnuma1",))
    environment_of(image, root=tmp_path, process=NO_PYTHON, progress=lines)
    assert lines == ["image cpu: this host must have its Debian packages (libnuma1)"]
