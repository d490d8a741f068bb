"""``allranks plan``: cells as a table and as JSON, and a plan of machines."""

import json

import pytest


def test_plan_shows_a_line_for_each_cell(allranks):
    code, out, err = allranks("plan")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["gloo-w1-g0-env", "gloo-w2-g0-env", "nccl-w2-g2-env"]
    assert "3 cells, 5 jobs" in out
    assert "a GPU for each rank" not in out


def test_plan_names_distributed_test_files_that_are_in_no_suite(allranks, repository):
    (repository / "more").mkdir()
    for name in ("test_new.py", "test_excluded.py"):
        (repository / "more" / name).write_text("def test_it(rank):\n    pass\n")
    (repository / "more/test_plain.py").write_text("def test_it():\n    pass\n")
    path = repository / "matrix.toml"
    path.write_text(f'{path.read_text()}\n[suites.more]\npath = "more/*.py"\nexclude = ["more/test_excluded.py"]\n')
    assert "in no suite" not in allranks("plan")[1]
    path.write_text(path.read_text().replace("more/*.py", "more/test_[ep]*.py"))
    assert "in no suite, and never run: more/test_new.py." in allranks("plan")[1]


def test_plan_explains_each_dropped_cell(allranks):
    _, out, _ = allranks("plan", "--explain")
    assert "5 dropped cells of 8 combinations" in out
    assert "a GPU for each rank" in out


def test_plan_as_json_prints_only_json(allranks):
    _, out, _ = allranks("plan", "--format", "json")
    assert [cell["id"] for cell in json.loads(out)["cells"]] == ["gloo-w1-g0-env", "gloo-w2-g0-env", "nccl-w2-g2-env"]


@pytest.mark.parametrize("command", [("plan", "--format", "json"), ("plan", "--requests"), ("build", "--dry-run")])
def test_a_rule_for_an_unknown_value_is_a_warning_on_standard_error(allranks, repository, command):
    path = repository / "matrix.toml"
    path.write_text(path.read_text().replace('["gloo", "nccl"]', '["gloo"]'))
    code, out, err = allranks(*command)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("allranks: warning: matrix.toml:7: matrix.exclude.when: the condition has 'nccl'")
    assert "warning" not in out


def test_the_matrix_of_another_folder_can_be_given(allranks, repository, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert allranks("plan", "--matrix", str(repository))[0] == 0
    assert allranks("plan", "--matrix", str(repository / "matrix.toml"))[0] == 0


def test_requests_are_printed_as_json(allranks, repository):
    code, out, err = allranks("plan", "--requests", "--where", "backend=gloo", "--", "-k", "x")
    assert (code, err) == (0, "")
    requests = json.loads(out)
    assert [request["job_id"] for request in requests] == [
        "gloo-w1-g0-env/tiny", "gloo-w2-g0-env/tiny", "gloo-w2-g0-env/other",
    ]  # fmt: skip
    assert requests[0]["agent"]["pytest_args"] == ["-k", "x"]
    assert not (repository / "results").exists()


def test_each_shard_has_a_request(allranks, repository):
    matrix = repository / "matrix.toml"
    tiny = '[suites.tiny]\npath = "suite"'
    matrix.write_text(matrix.read_text().replace(tiny, f"{tiny}\nshards = 2"))
    requests = json.loads(allranks("plan", "--requests", "gloo-w2-g0-env", "--suite", "tiny")[1])
    assert [request["job_id"] for request in requests] == [f"gloo-w2-g0-env/tiny@{number}of2" for number in (1, 2)]
    assert [request["agent"]["share"]["number"] for request in requests] == [1, 2]


@pytest.mark.usefixtures("runners")
def test_a_plan_for_github_is_json_with_a_summary_on_standard_error(allranks, repository):
    code, out, err = allranks("plan", "--format", "github")
    assert (code, out.count("\n")) == (0, 1)
    assert [entry["jobs"] for entry in json.loads(out)["include"]] == [3, 2]
    assert err.startswith("5 jobs in 2 entries of the job matrix\n")
    assert not (repository / "plan.json").exists()


def test_gpu_cells_without_a_runner_are_an_error_only_in_a_plan_for_github(allranks):
    assert allranks("plan")[0] == 0
    code, out, err = allranks("plan", "--format", "github")
    assert (code, out) == (2, "")
    assert "No CI machine takes the cell nccl-w2-g2-env" in err
    assert "[[runners]]" in err


def test_an_empty_plan_is_an_error(allranks):
    code, out, err = allranks("plan", "--format", "github", "gloo-w1-g0-env", "--suite", "other")
    assert (code, out) == (2, "")
    assert "nothing to run" in err


@pytest.mark.parametrize(
    "wrong", [["--max-entries", "257"], ["--max-entries", "0"], ["--minutes-per-entry", "0"], ["--max-entries", "x"]]
)
def test_more_entries_than_github_allows_are_rejected(allranks, wrong):
    code, out, err = allranks("plan", "--format", "github", *wrong)
    assert (code, out) == (2, "")
    assert wrong[0] in err


def test_json_is_short_for_format_json(allranks):
    assert allranks("plan", "--json") == allranks("plan", "--format", "json")
