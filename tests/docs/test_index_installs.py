"""No text of the project installs allranks by name: on an index, that name may be someone else's."""

from pathlib import Path

import pytest
from index_installs import index_installs
from long_lists import quick

from allranks.cli import init

ROOT = Path(__file__).parents[2]
FOLDERS = (".github", "docs", "docker", "scripts", "src", "benchmarks", "suites")
KINDS = {".md", ".toml", ".yml", ".yaml", ".txt", ".cfg", ".py", ".html", ".debian", ".cuda", ""}

BY_NAME = [
    "pip install allranks",
    "$ pip install allranks pytest torch numpy",
    'pip install "allranks[completion]"',
    "python3 -m pip install --upgrade 'allranks>=0.1'",
    "venv/bin/pip install -q pytest allranks==0.1.0",
    "pip3 install pytest \\\n    allranks",
    "With `pip install allranks`, it works.",
    "pip download allranks",
    "uv pip install allranks",
    "uvx allranks run",
    "uvx --from allranks allranks run",
    "uvx --with allranks nox",
    "uvx --with=allranks[completion] nox",
    "uv tool install allranks",
    "uv add --dev allranks",
    "uv run --with allranks pytest",
    "pipx run allranks",
    "pipx run --spec allranks==0.1 allranks",
    "pipx install allranks && allranks doctor",
    "pipx inject nox allranks",
    "poetry add allranks",
    "conda install -c conda-forge allranks",
    '# dependencies = ["nox", "allranks"]',
    'dependencies = ["allranks>=0.1"]',
    "dependencies = [\n  'nox',\n  'allranks[completion]~=0.1',\n]",
    'requires = ["hatchling", "allranks"]',
    'packages = ["numpy", "allranks"]',
    "install_requires=['allranks']",
    "session.install('allranks', 'pytest')",
    "additional_dependencies: [allranks]",
    "with: { packages: allranks }",
    "dependencies:\n  - python\n  - allranks>=0.1",
    "pytest\nallranks==0.1.0  # the release\n",
    "allranks[completion]",
    "Allranks ; python_version > '3.10'",
]
WITH_ADDRESS = [
    "pip install .",
    "pip install ./allranks pytest",
    "pip install path/to/allranks",
    "pip install 'path/to/allranks[completion]'",
    "pip install allranks-0.1.0-py3-none-any.whl",
    "pip install 'allranks @ git+https://github.com/OWNER/allranks@COMMIT'",
    "uv tool install .",
    "uvx --with path/to/allranks nox",
    "pipx inject nox path/to/allranks && allranks run",
    "`pip install` of allranks",
    "pip install shtab; allranks --completion bash",
    '# dependencies = ["nox", "allranks @ file:///path/to/allranks"]',
    'dependencies = ["nox", "allranks @ git+https://h/allranks@0123"]',
    "allranks @ file:///path/to/allranks",
    "session.run('allranks', 'init')",
    'packages = ["src/allranks"]',
    "Install allranks from a checkout.",
    "allranks run --engine process",
    "pip install pytest-allranks",
]


@pytest.mark.parametrize("text", BY_NAME)
def test_an_install_by_name_is_found(text):
    assert list(index_installs(text))


@pytest.mark.parametrize("text", WITH_ADDRESS)
def test_an_install_with_an_address_is_allowed(text):
    assert list(index_installs(text)) == []


def texts():
    """The files that users read, copy or run."""
    found = [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    return sorted(str(path.relative_to(ROOT)) for path in found if path.is_file() and path.suffix in KINDS)


def test_the_files_that_users_read_are_checked():
    assert {"README.md", "docs/tutorial.md", ".github/workflows/dist.yml", "docs/examples/dist.yml"} <= set(texts())


@pytest.mark.parametrize("name", quick(3, texts()))
def test_no_file_installs_allranks_by_name(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert list(index_installs(text, has_requirement_lines=name.endswith((".md", ".txt", ".yml", ".yaml")))) == []


@pytest.mark.parametrize("torch", ["", "2.13.0"])
def test_no_file_that_init_writes_installs_allranks_by_name(tmp_path, monkeypatch, torch):
    monkeypatch.setattr(init, "installed_torch", lambda: (torch, True))
    monkeypatch.setattr(init, "_engine", lambda: ("process", ""))
    written = init.contents(init.inspect_repository(tmp_path))
    assert "allranks @ file:///" in written["noxfile.py"]
    for text in written.values():
        assert list(index_installs(text)) == []
