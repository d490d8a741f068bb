"""``allranks init`` and the run that it promises, on the process engine."""

import subprocess
import sys
from pathlib import Path

import pytest

EXISTING = {
    "pyproject.toml": "[project]\nname = 'x'\nversion = '1'\n[tool.pytest.ini_options]\naddopts = '-n auto'\n",
    "x.py": "",
    "requirements.txt": "numpy\n",
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef rank_of_mine(rank):\n    return rank\n",
    "tests/test_old.py": "def test_of_old(): raise AssertionError('not in the suite')\n",
}


@pytest.mark.parametrize("files", [{}, EXISTING], ids=["empty", "with tests"])
def test_what_init_writes_runs_at_once(launch, tmp_path, monkeypatch, files):
    folder = tmp_path / "repository"
    (folder / "tests").mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    for command in ("init", "plan"):
        subprocess.run([sys.executable, "-m", "allranks", command], cwd=folder, check=True, timeout=60)
    done = launch(folder, "--engine", "process")
    assert done.code == 0, done.output
    assert set(done.cases) == {"test_all_reduce_sums_over_ranks"}
