"""scripts/workflow-actions keeps copies that are there, and names what it cannot bring."""

import os
import subprocess
from pathlib import Path

import pytest
from act_runner import DIST, USES, NoActError, copies_of_actions
from callers import ROOT


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ALLRANKS_ACTIONS", str(tmp_path / "actions"))
    return tmp_path / "actions"


def bring(server: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "ALLRANKS_ACTIONS_GIT": str(server), "LC_ALL": "C"}
    script = str(ROOT / "scripts" / "workflow-actions")
    return subprocess.run([script], env=environ, capture_output=True, text=True, check=False)


def test_without_its_server_an_action_is_named_and_nothing_is_left(folder, tmp_path):
    done = bring(tmp_path / "nowhere")
    assert done.returncode == 4
    what, why, remedy = done.stderr.splitlines()
    assert what.startswith("actions/cache cannot be had at ")
    assert "does not appear to be a git repository" in why
    assert f"lay a copy of that commit into {folder}/actions/cache@" in remedy
    assert [path.name for path in folder.iterdir()] == ["actions"]


def test_copies_that_are_there_need_no_server(folder, tmp_path):
    with pytest.raises(NoActError, match=r"lacks actions/cache@\w{7}, actions/checkout@"):
        copies_of_actions()
    for match in USES.finditer(DIST.read_text(encoding="utf-8")):
        place = folder / f"{match['action']}@{match['commit']}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "action.yml").touch()
    assert bring(tmp_path / "nowhere").returncode == 0
    assert {place.parent.parent for place in copies_of_actions().values()} == {folder}
