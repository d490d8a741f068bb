import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers: pytest's importlib mode does not add it


@pytest.fixture
def shell(tmp_path_factory, environment_without_ranks):
    """``shell(line, code=0)`` runs a command line in a user's folder and returns its output."""
    tmp_path = tmp_path_factory.mktemp("docs")  # short: long paths are wrapped in the output
    folder = tmp_path / "demo"
    (tmp_path / "home" / ".zfunc").mkdir(parents=True)
    folder.mkdir()
    environment = {
        **environment_without_ranks,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
        "ALLRANKS_ENGINE": "process",
        "BROWSER": "true",
        "COLUMNS": "200",
        "CI": "",  # pytest prints longer lines there
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "",
    }

    def run(line, code=0):
        done = subprocess.run(
            ["/bin/bash", "-c", line],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,  # 124 s instead of 6 s were seen on two busy cores
            check=False,
        )
        assert done.returncode == code, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    run.folder = folder
    return run
