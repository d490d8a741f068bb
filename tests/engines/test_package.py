import ast
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.engines import package
from allranks.engines.package import copied_package, package_files, package_folder, package_path
from allranks.errors import EnvironmentBuildError


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A copy of the package's folders next to other packages, as in site-packages."""
    folder = tmp_path / "site-packages" / "allranks"
    for name in ("__init__.py", "agent/__init__.py", "testing/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    monkeypatch.setattr(package, "package_folder", lambda: folder)
    return folder


def test_what_is_copied_is_the_package_the_agent_and_what_suites_import():
    targets = {copy.target for copy in package_files()}
    core = {"__init__.py", "protocol", "agent", "testing", "pytest_plugin/__init__.py"}
    assert {Path("allranks", name) for name in core} <= targets
    others = {path.parts[1:] for path in targets - {Path("allranks", name) for name in core}}
    assert {parts for parts in others if parts[0] != "plugins"} == set()
    assert {parts[2:] for parts in others if len(parts) > 2} <= {("__init__.py",), ("agent",)}
    assert all(copy.source.exists() for copy in package_files())


def test_what_is_copied_imports_nothing_of_allranks_that_is_not():
    copies = {copy.source for copy in package_files()}
    files = {path for copy in copies for path in (copy.rglob("*.py") if copy.is_dir() else [copy])}
    rooms = {"protocol", "agent", "testing", "plugins"}
    imports = {
        (path, node.module)
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("allranks.")
    }
    assert len(imports) > 100
    others = {(path, module) for path, module in imports if module.split(".")[1] not in rooms}
    names = ("engines.process", "errors", "matrix.axes", "matrix.declaration", "matrix.toml_file")
    outside = {f"allranks.{name}" for name in (*names, "pytest_plugin.rank_reports", "pytest_plugin.ranks_session")}
    plugin = package_folder() / "pytest_plugin" / "__init__.py"
    assert others == {(plugin, module) for module in outside}  # which it does outside of jobs only


COPY_ALONE = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in ("pytest", "torch", "_pytest", "pluggy"):
    sys.modules[name] = None  # an import of it fails
for module in ("allranks.agent.supervisor.job", *sys.argv[2:]):
    print(importlib.import_module(module).__file__)
"""


@pytest.mark.thorough
def test_a_copy_of_the_package_can_be_imported_on_its_own_with_the_parts_of_plug_ins(tmp_path):
    """As in a job's supervisor, which only has the standard library."""
    made = copied_package(tmp_path / "cache")
    parts = sorted(made.glob("allranks/plugins/*/agent/hooks.py"))
    assert len(parts) == len(list(package_folder().glob("plugins/*/agent/hooks.py")))
    modules = [".".join(part.relative_to(made).with_suffix("").parts) for part in parts]
    command = [sys.executable, "-I", "-S", "-c", COPY_ALONE, str(made), *modules]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert found == [str(made / "allranks" / "agent" / "supervisor" / "job.py"), *map(str, parts)]


def test_of_a_plug_in_without_a_part_for_jobs_nothing_is_copied(installed):
    for name in ("plugins/__init__.py", "plugins/one/__init__.py", "plugins/one/hooks.py"):
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text("")
    assert not any("plugins" in copy.target.parts for copy in package_files())


def test_of_a_plug_in_its_package_and_its_part_for_jobs_are_copied(installed):
    for name in ("", "one/", "one/agent/", "two/"):
        (installed / "plugins" / name).mkdir(parents=True, exist_ok=True)
        (installed / "plugins" / name / "__init__.py").write_text("")
    copied = {str(copy.target) for copy in package_files() if "plugins" in copy.target.parts}
    assert copied == {f"allranks/plugins/{name}" for name in ("__init__.py", "one/__init__.py", "one/agent")}


def test_a_package_alone_in_its_folder_is_found_there(installed, tmp_path):
    assert package_path(tmp_path / "cache") == installed.parent
    assert not (tmp_path / "cache").exists()


def test_a_package_among_others_needs_a_cache_that_can_be_made(installed):
    (installed.parent / "torch").mkdir()
    with pytest.raises(EnvironmentBuildError, match="No such file or directory") as error:
        package_path(Path("/proc/nope/cache"))
    assert "XDG_CACHE_HOME" in error.value.remedy


def test_a_package_among_others_is_linked_to_where_nothing_else_is(installed, tmp_path):
    (installed.parent / "torch").mkdir()
    path = package_path(tmp_path / "cache")
    assert [entry.name for entry in path.iterdir()] == ["allranks"]
    assert (path / "allranks").resolve() == installed


def test_the_link_is_made_once(installed, tmp_path):
    (installed.parent / "torch").mkdir()
    first = package_path(tmp_path / "cache")
    made = (first / "allranks").lstat().st_mtime_ns
    assert package_path(tmp_path / "cache") == first
    assert (first / "allranks").lstat().st_mtime_ns == made


def test_a_link_that_leads_nowhere_is_made_again(installed, tmp_path):
    (installed.parent / "torch").mkdir()
    link = package_path(tmp_path / "cache") / "allranks"
    link.unlink()
    link.symlink_to(tmp_path / "gone")
    package_path(tmp_path / "cache")
    assert link.resolve() == installed


def test_two_installed_packages_do_not_share_a_link(installed, tmp_path, monkeypatch):
    (installed.parent / "torch").mkdir()
    first = package_path(tmp_path / "cache")
    other = tmp_path / "other" / "allranks"
    other.mkdir(parents=True)
    (other.parent / "torch").mkdir()
    monkeypatch.setattr(package, "package_folder", lambda: other)
    assert package_path(tmp_path / "cache") != first


def test_another_python_finds_the_agent_on_that_path(tmp_path):
    program = "import allranks.protocol.config as c; print(c.__file__)"
    environment = {"PYTHONPATH": str(package_path(tmp_path))}
    command = [sys.executable, "-S", "-c", program]
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    assert Path(found).resolve() == package_folder() / "protocol" / "config.py"
