"""Projects that are copied into each job."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from allranks.errors import ImageError
from allranks.images import pip_settings, project, wheels
from allranks.images.project import project_files, without_project
from allranks.matrix.model import Image

IMAGE = Image(name="cpu", torch="2.13.0", packages=("numpy",), project=Path(), mode="copy")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A project with one module."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\nname = 'hello'\n")
    (folder / "hello.py").write_text("WORD = 'one'\n")
    return folder


@dataclass
class Builds:
    """The builds of wheels, each with the module at that time, and further files for the next one.

    Attributes:
        meanwhile: Happens during each build, after it has read the source.
    """

    meanwhile: Callable[[], object] = lambda: None

    wheels: list[Path] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)


@pytest.fixture(autouse=True)
def builds(monkeypatch, make_wheel):
    made = Builds()

    def build_wheel(folder, *, into, progress):  # noqa: ARG001
        files = {"hello.py": (folder / "hello.py").read_text(), **made.more}
        made.meanwhile()
        made.wheels.append(make_wheel(into, "hello", "1.0", requires=["six"], files=files))
        return made.wheels[-1]

    monkeypatch.setattr(project, "build_wheel", build_wheel)
    return made


def test_an_image_has_what_the_project_needs_and_not_the_project(repository, progress):
    made = without_project(IMAGE, repository, progress)
    assert made == replace(IMAGE, project=None, mode="install", packages=("numpy", "six"))


def test_the_files_are_those_of_an_installed_project(repository, progress):
    folder = project_files(IMAGE, repository, progress)
    assert (folder / "hello.py").read_text() == "WORD = 'one'\n"
    assert (folder / "hello-1.0.dist-info" / "METADATA").exists()


def test_a_change_of_the_source_is_seen_and_leaves_what_a_run_has_taken(repository, progress):
    before = project_files(IMAGE, repository, progress)
    (repository / "hello.py").write_text("WORD = 'another'\n")
    after = project_files(IMAGE, repository, progress)
    assert (after / "hello.py").read_text() == "WORD = 'another'\n"
    assert (before / "hello.py").read_text() == "WORD = 'one'\n"


def test_nothing_is_built_while_the_source_stays(repository, builds, progress):
    folders = {project_files(IMAGE, repository, progress) for _ in range(2)}
    without_project(IMAGE, repository, progress)
    assert len(folders) == len(builds.wheels) == 1


def test_a_change_during_a_build_is_not_kept_as_what_was_there_before(repository, builds, progress):
    module, changes = repository / "hello.py", iter(("WORD = 'two'\n",))
    builds.meanwhile = lambda: module.write_text(next(changes, "WORD = 'two'\n"))
    assert (project_files(IMAGE, repository, progress) / "hello.py").read_text() == "WORD = 'two'\n"
    module.write_text("WORD = 'one'\n")
    builds.meanwhile = lambda: None
    assert (project_files(IMAGE, repository, progress) / "hello.py").read_text() == "WORD = 'one'\n"


def test_what_is_made_of_a_project_that_never_stays_is_for_one_run(repository, builds, progress):
    words = count()
    builds.meanwhile = lambda: (repository / "hello.py").write_text(f"WORD = {next(words)}\n")
    made = {project_files(IMAGE, repository, progress) for _ in range(2)}
    assert len(made) == 2
    assert sum("only this run uses the result" in line for line in progress) == 2


def test_another_python_builds_another_wheel(repository, builds, progress, monkeypatch):
    project_files(IMAGE, repository, progress)
    monkeypatch.setattr(project, "python_that_builds", lambda: "/opt/another/python3")
    project_files(IMAGE, repository, progress)
    assert len(builds.wheels) == 2


def test_a_wheel_that_is_kept_needs_no_pip(repository, progress, monkeypatch):
    def refuse(*_, **__):
        pytest.fail("a Python was started, to see whether it has pip")

    monkeypatch.setattr(pip_settings, "has_pip", lambda: False)
    first = project_files(IMAGE, repository, progress)
    monkeypatch.setattr(wheels, "succeeds", refuse)
    assert project_files(IMAGE, repository, progress) == first


def test_what_no_run_has_asked_for_in_weeks_is_forgotten_with_the_next_change(repository, progress):
    first = project_files(IMAGE, repository, progress)
    (repository / "hello.py").write_text("WORD = 'second'\n")
    second = project_files(IMAGE, repository, progress)
    os.utime(first.parent, (0, 0))
    (repository / "hello.py").write_text("WORD = 'the third'\n")
    project_files(IMAGE, repository, progress)
    assert not first.exists()
    assert second.exists()


def test_what_is_asked_for_again_stays(repository, progress):
    first = project_files(IMAGE, repository, progress)
    os.utime(first.parent, (0, 0))
    assert project_files(IMAGE, repository, progress) == first
    (repository / "hello.py").write_text("WORD = 'second'\n")
    project_files(IMAGE, repository, progress)
    assert first.exists()


def test_files_for_other_folders_than_pythons_are_refused(repository, builds, progress):
    builds.more["hello-1.0.data/scripts/hello"] = "#!/bin/sh\n"
    with pytest.raises(ImageError, match="cannot be copied into jobs") as error:
        project_files(IMAGE, repository, progress)
    assert 'mode = "install" in [images.cpu]' in error.value.remedy


@pytest.fixture
def with_tests(repository):
    """The image of a project with a folder of tests in a suite."""
    (repository / "tests").mkdir()
    (repository / "tests/test_hello.py").write_text("WORD = 1\n")
    (repository / "tests/kernel.cu").write_text("// 1\n")
    return replace(IMAGE, tests=(Path("tests"),))


def test_a_changed_test_builds_nothing(repository, with_tests, builds, progress, own_cache):
    first = project_files(with_tests, repository, progress)
    (repository / "tests/test_hello.py").write_text("WORD = 2\n")
    assert project_files(with_tests, repository, progress) == first
    (repository / "tests/test_hello.py").write_text("WORD = 3\n")
    assert project_files(with_tests, repository, progress) == first
    assert len(builds.wheels) == 1
    assert len([path for path in (own_cache / "allranks/projects").iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize(
    "path",
    ["hello.py", "pyproject.toml", "tests/test_new.py", "tests/__init__.py", "tests/kernel.cu", "tests/setup.py"],
)
def test_any_other_change_rebuilds(repository, with_tests, builds, progress, path):
    project_files(with_tests, repository, progress)
    (repository / "tests/test_hello.py").write_text("WORD = 2\n")
    (repository / path).write_text("VALUE = 1\n")
    made = project_files(with_tests, repository, progress)
    assert len(builds.wheels) == 2
    assert (made / "hello.py").read_text() == (repository / "hello.py").read_text()


def test_code_that_goes_back_and_forth_is_never_another_one(repository, with_tests, builds, progress):
    for word in ("one", "two", "one", "two"):
        (repository / "hello.py").write_text(f"WORD = '{word}'\n")
        (repository / "tests/test_hello.py").write_text(f"# {len(progress)}\n")
        made = project_files(with_tests, repository, progress)
        assert (made / "hello.py").read_text() == f"WORD = '{word}'\n"
    assert len(builds.wheels) == 2


@pytest.mark.parametrize(
    "name", ["tests/test_hello.py", "hello/tests/test_hello.py", "copied.py", "tests/test_hello.pyc"]
)
def test_a_changed_test_in_the_wheel_rebuilds_it(repository, with_tests, builds, progress, name):
    builds.more[name] = "WORD = 1\n" if name == "copied.py" else "another text"
    if name.startswith("hello/"):
        (repository / "hello").mkdir()
        (repository / "tests").rename(repository / "hello/tests")
        with_tests = replace(with_tests, tests=(Path("hello/tests"),))
    project_files(with_tests, repository, progress)
    next(repository.rglob("test_hello.py")).write_text("WORD = 2\n")
    project_files(with_tests, repository, progress)
    assert len(builds.wheels) == 2


@pytest.mark.parametrize("place", [".", ".."])
def test_a_suite_that_holds_the_whole_project_leaves_nothing_out(repository, with_tests, builds, progress, place):
    root = repository.parent if place == ".." else repository
    image = replace(with_tests, project=repository.relative_to(root), tests=(Path(),))
    project_files(image, root, progress)
    (repository / "tests/test_hello.py").write_text("WORD = 2\n")
    project_files(image, root, progress)
    assert len(builds.wheels) == 2


def test_tests_that_change_while_a_wheel_is_built_are_not_noted_as_those_that_it_lacks(
    repository, with_tests, builds, progress
):
    builds.meanwhile = (repository / "tests/__init__.py").touch
    project_files(with_tests, repository, progress)
    assert len(builds.wheels) == 2
    assert any("Trying again" in line for line in progress)
