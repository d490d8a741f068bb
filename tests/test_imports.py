"""Imports between the folders of the package point one way."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.engines.package import _NEEDED

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


@functools.cache
def imported(path: Path) -> set[str]:
    """The modules of allranks that a file imports, including local imports."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("allranks"):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            modules.update(name if name in MODULES else node.module for name in names)
    return modules


LAYERS = (
    ("protocol", "interruption", "colors"),
    ("errors", "agent"),
    ("testing", "ownership", "user_cache"),
    ("matrix",),
    ("images", "report"),
    ("plugin_manager",),
    ("engines", "junit"),
    ("runner",),
    ("nox", "pytest_plugin"),
    ("cli",),
    ("plugins",),
    ("__main__",),
)
"""Folders and modules of the package. Each imports from itself and from the layers above it in this list."""


def package(module: str) -> str:
    """The folder below ``allranks`` of a module, or the module itself."""
    return module.split(".")[1] if "." in module else ""


def test_imports_between_folders_point_one_way():
    level = {name: place for place, names in enumerate(LAYERS) for name in names}
    assert set(level) == {package(module) for module in MODULES} - {""} | {"plugins"}  # which may be deleted
    pairs = {(package(module), package(other)) for module, path in MODULES.items() for other in imported(path)}
    wrong = {(one, other) for one, other in pairs if one and other and one != other and level[one] <= level[other]}
    assert wrong == set()


AGENT = {
    "": set(),
    "diagnose": {""},
    "gangs": {"", "diagnose"},
    "nodes": {"", "gangs"},
    "supervisor": {"", "diagnose", "gangs", "nodes"},
    "rank": {"", "diagnose"},
    "launch": {"", "diagnose", "gangs", "rank"},
    "collect": {"", "diagnose", "gangs", "rank", "launch"},
}
"""The allowed imports of each folder of the agent; the supervisor imports nothing that runs tested code."""
ENTRIES = {"allranks.agent.__main__", "allranks.agent.plugin"}
"""The entry points of the agent for Python and pytest."""


def test_imports_between_folders_of_the_agent_point_one_way():
    def folder(module: str) -> str:
        inside = module.removeprefix("allranks.agent").strip(".").partition(".")[0]
        return inside if inside in AGENT else ""

    wrong = {
        (module, other)
        for module, path in MODULES.items()
        if package(module) == "agent" and module not in ENTRIES
        for other in imported(path)
        if package(other) == "agent" and folder(other) not in {folder(module), *AGENT[folder(module)]}
    }
    assert wrong == set()
    assert {path.parent.name for path in (SOURCE / "allranks/agent").glob("*/__init__.py")} == set(AGENT) - {""}


def test_a_plug_in_imports_no_other():
    pairs = {
        (module, other)
        for module, path in MODULES.items()
        if package(module) == "plugins" and module != "allranks.plugins"
        for other in imported(path)
        if package(other) == "plugins" and other.split(".")[2] != module.split(".")[2]
    }
    assert pairs == set()


def test_the_agent_needs_nothing_but_the_protocol():
    found = {
        package(other) for module, path in MODULES.items() if package(module) == "agent" for other in imported(path)
    }
    assert found <= {"", "agent", "protocol"}


IN_JOBS = [module for module in MODULES if package(module) == "plugins" and module.split(".")[3:4] == ["agent"]]
"""The parts of plug-ins that run inside jobs."""


def test_the_part_of_a_plug_in_for_jobs_needs_nothing_but_the_agent_and_the_protocol():
    pairs = {(module, other) for module in IN_JOBS for other in imported(MODULES[module])}
    others = {
        (module, other)
        for module, other in pairs
        if package(other) not in {"agent", "protocol"} and other.split(".")[:4] != module.split(".")[:4]
    }
    assert others == set()


def test_the_package_of_a_plug_in_imports_nothing():
    """A job imports it with the plug-in's part."""
    packages = [path for module, path in MODULES.items() if package(module) == "plugins" and module.count(".") <= 2]
    assert len(packages) > 1 or not (SOURCE / "allranks/plugins").exists()
    assert {other for path in packages for other in imported(path)} == set()


def test_the_core_does_not_name_what_repeats_tests():
    """The folder can be deleted: only the list of plug-ins and nox.py mention it."""
    core = {module: path for module, path in MODULES.items() if package(module) != "plugins"}
    named = {module for module, path in core.items() if "stress" in path.read_text().lower()}
    assert named == {"allranks.plugin_manager", "allranks.nox"}


@pytest.mark.thorough
def test_one_package_alone_imports_junitparser_and_one_command_imports_that():
    importers = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(alias.name.startswith("junitparser") for alias in node.names)
    }
    assert {package(name) for name in importers} == {"junit"}
    users = {name for name, path in MODULES.items() if any("allranks.junit" in module for module in imported(path))}
    assert {name for name in users if package(name) != "junit"} <= {"allranks.plugins.history.show"}
    assert not any("junit" in name for name in _NEEDED)


WITHOUT = """
import importlib, sys
for name in ("pytest", "torch", "_pytest", "junitparser"):
    sys.modules[name] = None  # an import of it fails
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


def test_what_an_orchestrator_imports_needs_neither_pytest_nor_torch():
    folders = ("cli", "plugins", "engines", "images", "matrix", "report", "runner")
    apart = "allranks.runner.coverage_script"  # a program of another interpreter
    modules = [module for module in MODULES if package(module) in folders and module not in (apart, *IN_JOBS)]
    assert len(modules) > 80
    subprocess.run([sys.executable, "-c", WITHOUT, *modules], check=True, timeout=60)


def test_nothing_but_the_list_of_plug_ins_names_the_plug_in_history():
    files = [path for path in SOURCE.rglob("*") if path.suffix in {".py", ".json", ".html", ".css"}]
    core = [path for path in files if "plugins" not in path.parts]
    assert len(core) > 200
    assert {path.name for path in core if "history" in path.read_text().lower()} == {"plugin_manager.py"}


def test_the_fork_server_can_report_that_torch_or_pytest_is_missing():
    code = "import sys, allranks.agent.collect.fork_server\nsys.exit(str({'pytest', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"
