"""The metadata on a package index, and the files of a wheel."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def hook(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    import hatch_build

    yield hatch_build
    del sys.modules["hatch_build"]


def metadata_of(hook):
    metadata = {}
    hook.CustomMetadataHook(str(ROOT), {}).update(metadata)
    return metadata


def test_the_page_of_an_index_has_no_link_that_leads_nowhere(hook, monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    metadata = metadata_of(hook)
    assert re.findall(r"\]\((?!https?:|#)", metadata["readme"]["text"]) == []
    assert "lists the guarantees" in metadata["readme"]["text"]
    assert "![" not in metadata["readme"]["text"], "a picture that nobody sees"
    assert metadata["urls"] == {}


def test_a_workflow_gives_the_address_of_its_repository(hook, monkeypatch):
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/allranks")
    metadata = metadata_of(hook)
    home = "https://git.example/someone/allranks"
    assert f"[selection and reruns]({home}/blob/HEAD/docs/runs.md#selection)" in metadata["readme"]["text"]
    assert f"]({home}/raw/HEAD/docs/pictures/report.png)" in metadata["readme"]["text"]
    assert metadata["urls"]["Source"] == home
    assert set(metadata["urls"]) == {"Source", "Documentation", "Changelog", "Issues"}


def test_the_source_distribution_has_the_docs_and_the_scripts_that_remedies_name():
    include = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"docs", "/*.md", "scripts", "/hatch_build.py"} <= set(include)


def test_the_source_distribution_has_what_its_tests_read():
    include = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    named = re.compile(r"\b(?:ROOT|parents\[\d\]) / \"(?P<top>[\w.]+)")
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    tops = {top for text in texts for top in named.findall(text) if (ROOT / top).exists()} - {"pyproject.toml"}
    assert {"docs", "scripts", ".github"} <= tops
    pages = {path.name for path in ROOT.glob("*.md")}
    assert {top for top in tops - pages if not {top, f"/{top}"} & set(include)} == set()


def test_the_changelog_has_the_version_that_a_tag_would_release():
    [version] = re.findall(r'^__version__ = "(.+)"$', (ROOT / "src/allranks/__init__.py").read_text(), re.MULTILINE)
    newest = re.search(
        r"^## \[(?!Unreleased)(.+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert newest[1] == version


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_each_python_that_is_tested_has_its_classifier(minor):
    assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["project"]["classifiers"]


def test_no_remedy_names_a_script_as_if_a_wheel_had_it():
    for path in (ROOT / "src").rglob("*.py"):
        for line in path.read_text().splitlines():
            if re.search(r"(remedy|Start|run |Without).*scripts/", line):
                assert "source" in line, f"{path.name}: {line.strip()}"


def test_a_wheel_has_the_suites_where_a_matrix_file_finds_them():
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["suites"] == "allranks/suites"
