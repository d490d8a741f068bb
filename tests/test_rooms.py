"""Packages stand in layers: imports between them point one way."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from allranks.engines.package import _NEEDED

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def imported(path: Path) -> Iterator[str]:
    """The modules of allranks that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("allranks"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


def package(module: str) -> str:
    """The room below ``allranks`` that a module is in; itself, where it stands above all rooms."""
    return ".".join(module.split(".")[:2])


def test_no_package_imports_one_that_imports_it():
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        others = {package(each) for each in imported(path)} - {package(module), "allranks"}
        graph.setdefault(package(module), set()).update(others)
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("allranks.agent") < order.index("allranks.testing")
    assert order.index("allranks.matrix") < order.index("allranks.runner")


def test_one_package_alone_imports_junitparser_and_one_command_imports_that():
    importers = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(alias.name.startswith("junitparser") for alias in node.names)
    }
    assert {package(name) for name in importers} == {"allranks.junit"}
    users = {name for name, path in MODULES.items() if any("allranks.junit" in each for each in imported(path))}
    assert {name for name in users if package(name) != "allranks.junit"} == {"allranks.cli.show"}
    assert not any("junit" in name for name in _NEEDED)


WITHOUT = """
import importlib, sys
for name in ("pytest", "torch", "_pytest", "junitparser"):
    sys.modules[name] = None  # an import of it fails
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


def test_what_an_orchestrator_imports_needs_neither_pytest_nor_torch():
    rooms = ("cli", "engines", "images", "matrix", "report", "runner")
    modules = [
        module
        for module in MODULES
        if module.split(".")[1:2] and module.split(".")[1] in rooms and "script" not in module
    ]
    assert len(modules) > 80
    subprocess.run([sys.executable, "-c", WITHOUT, *modules], check=True, timeout=60)
