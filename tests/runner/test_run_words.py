"""The matrix in the manifest of a run."""

from allranks.matrix.declaration import load
from allranks.report.run_files import DroppedCells, JudgingPolicy
from allranks.runner.results_folder import facts_of
from allranks.runner.run_jobs import _relative

MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]
gpu_count = [0, 1, 2]

[[matrix.exclude]]
when = "gpu_count > 0"
reason = "no GPU here"

[suites.s]
path = "t"

[images.cpu]
torch = "2.13.0"
"""


def test_every_rule_that_dropped_cells_is_in_the_manifest_with_its_reason(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "matrix.toml").write_text(MATRIX)
    facts = facts_of(load(tmp_path))
    assert facts.dropped == (DroppedCells(rule="gpu_count > 0", reason="no GPU here", count=2),)


def test_an_unset_policy_is_not_in_the_manifest(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "matrix.toml").write_text(MATRIX)
    assert facts_of(load(tmp_path)).policy == JudgingPolicy()


def test_a_path_below_the_current_folder_is_shown_as_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(_relative(tmp_path / "results" / "latest")) == "results/latest"
    assert _relative(tmp_path.parent / "results") == tmp_path.parent / "results"
