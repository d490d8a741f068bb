import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers, which pytest's importlib mode does not find


@pytest.fixture
def shell(tmp_path_factory, environment_without_ranks):
    """Run lines as a user would, in a folder of theirs: what they print."""
    tmp_path = tmp_path_factory.mktemp("docs")  # short: a path of more than a line is divided, and those shown are not
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
            timeout=400,  # two cores that others use, too: 6 s became 124 s
            check=False,
        )
        assert done.returncode == code, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    run.folder = folder
    return run
