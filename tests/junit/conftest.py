"""The rich run of the clients' tests, merged in any form, and files of other writers."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]


def _fixtures_of(place: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fixtures_{place.replace('/', '_')}", TESTS / place / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run_folder = _fixtures_of("report").run_folder
report = _fixtures_of("report/clients").report


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a report of another writer."""

    def make(text: str, name: str = "other.xml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return make
