"""The table of a backend's capabilities: from verdicts to states, cells, documents and their difference."""

import json

import pytest

from allranks.errors import ResultsError
from allranks.plugins.conformance.capabilities import (
    Capability,
    CapabilityKey,
    add_tests,
    as_document,
    changes,
    from_document,
    is_bad,
    state_of,
)
from allranks.plugins.conformance.capability_tables import (
    CapabilitySection,
    as_html,
    as_markdown,
    as_text,
    change_lines,
)
from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.records import Finished, JobStarted, Passed, Tagged, encode
from allranks.report.journal import read_journal
from allranks.report.judge.rules import VerdictPolicy
from allranks.report.judge.rules import verdict as judged
from allranks.report.judged import CellSuite
from allranks.report.merging import merge
from allranks.report.results import RankResult, TestVerdict

LACK = "mine has no support for this: No backend type associated with device type cpu"


def ranks(*outcomes, message=""):
    return [
        RankResult(
            nodeid="test_x.py::test_x",
            classname="test_x",
            name="test_x",
            rank=rank,
            outcome=outcome,
            at=float(rank),
            message=message or outcome,
            text=message or outcome,
            skip_kind=SkipKind.ENVIRONMENT if outcome is Outcome.SKIPPED else None,
            caused_by=0 if outcome is Outcome.ABORTED else None,
        )
        for rank, outcome in enumerate(outcomes)
    ]


def verdict(*outcomes, message="", nodeid="test_x.py::test_x"):
    given = ranks(*outcomes, message=message)
    return TestVerdict(
        nodeid=nodeid, classname="test_x", name="test_x", verdict=judged(given, VerdictPolicy()), ranks=given
    )


P, F, S, T, C, A = (
    *(Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED),
    *(Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.ABORTED),
)


@pytest.mark.parametrize(
    ("outcomes", "message", "state"),
    [
        ((P, P), "", Capability.WORKS),
        ((S, S), LACK, Capability.UNSUPPORTED),
        ((S, S), "the world is too small for this test", None),
        ((F, P), "1 is not 2", Capability.WRONG),
        ((S, P), LACK, Capability.WRONG),
        ((S, A), LACK, Capability.WRONG),
        ((T, T), "", Capability.HANGS),
        ((P, T), "", Capability.HANGS),
        ((C, A), "", Capability.CRASHES),
        ((Outcome.MISSING, P), "", Capability.CRASHES),
    ],
)
def test_a_verdict_is_a_state(outcomes, message, state):
    assert state_of(verdict(*outcomes, message=message), {}, "mine") is state


def test_ranks_without_a_part_in_a_test_may_pass_what_others_are_refused():
    some = {"ranks": "some"}
    assert state_of(verdict(S, P, message=LACK), some, "mine") is Capability.UNSUPPORTED
    assert state_of(verdict(S, F, message=LACK), some, "mine") is Capability.WRONG
    assert state_of(verdict(S, P, message="the world is too small"), some, "mine") is Capability.WRONG


def suite(tests, cell="mine-w2-g0-tcp"):
    """A job with these tests: by node id, their tags and their verdict."""
    return CellSuite(
        cell=cell,
        suite="collectives",
        axes={"backend": "mine"},
        tests=tuple(test for _, test in tests.values()),
        tags={nodeid: tags for nodeid, (tags, _) in tests.items() if tags},
    )


def tables_of(*suites):
    tables = {}
    for item in suites:
        add_tests(tables, item)
    return tables


REDUCE = {"operation": "all_reduce", "dtype": "int32"}


def test_a_bad_cell_is_in_a_table_that_is_full(monkeypatch):
    monkeypatch.setattr("allranks.plugins.conformance.capabilities.MOST_CELLS", 1)
    tests = {
        name: ({"operation": name}, verdict(outcome, nodeid=name)) for name, outcome in (("a", P), ("b", P), ("c", F))
    }
    tables = tables_of(suite(tests))
    assert [key.operation for key in tables["mine"]] == ["a", "c"]
    assert is_bad(tables)


@pytest.fixture
def tables():
    return tables_of(
        suite(
            {
                "a": (REDUCE, verdict(P, P, nodeid="a")),
                "b": (REDUCE, verdict(F, P, message="1 is not <b>2</b>\nmore", nodeid="b")),
                "c": ({"operation": "barrier", "mode": "async", "group": "sub"}, verdict(P, P, nodeid="c")),
                "d": ({"operation": "scatter", "dtype": "bool"}, verdict(S, S, message=LACK, nodeid="d")),
                "e": ({}, verdict(F, F, nodeid="e")),
            }
        )
    )


def test_the_worst_test_of_a_cell_counts_and_is_an_example(tables):
    cell = tables["mine"][CapabilityKey("all_reduce", dtype="int32")]
    assert cell.state is Capability.WRONG
    assert cell.counts == {Capability.WORKS: 1, Capability.WRONG: 1}
    assert [(test.nodeid, test.cell) for test in cell.bad] == [("b", "mine-w2-g0-tcp")]
    assert is_bad(tables)


def test_a_test_without_tags_is_in_no_table(tables):
    assert sum(sum(cell.counts.values()) for cell in tables["mine"].values()) == 4
    assert tables_of(suite({"e": ({}, verdict(P, P, nodeid="e"))})) == {}


def test_jobs_of_a_backend_share_a_table():
    one, other = (suite({"a": (REDUCE, verdict(P, P, nodeid="a"))}, cell=f"mine-w{size}-g0-tcp") for size in (2, 4))
    [cell] = tables_of(one, other)["mine"].values()
    assert cell.counts == {Capability.WORKS: 2}


def test_the_text_has_a_row_for_each_operation_and_mode_and_names_what_is_wrong(tables):
    lines = as_text(tables).splitlines()
    assert lines[0].split() == ["mine", "bool", "i32", "any"]
    assert [line.split()[-1] for line in lines[1:4]] == ["WRONG", "ok", "no"]
    assert lines[2].startswith("barrier, async, sub-group")
    assert lines[5].startswith("wrong: all_reduce, int32 (in mine-w2-g0-tcp): ")
    assert "1 is not" in lines[5]
    assert lines[6:] == ["    b"]


def test_markdown_and_html_have_the_same_cells(tables):
    assert "|  | WRONG |  |" in as_markdown(tables)
    page = as_html(tables)
    assert page.count("<tr>") == 4
    assert '<td class="t-bad" title="wrong">WRONG</td>' in page
    assert '<td class="t-idle" title="unsupported">no</td>' in page


def test_a_label_of_a_suite_is_inert_on_the_page():
    tables = tables_of(suite({"a": ({"operation": "<script>"}, verdict(P, P, nodeid="a"))}))
    assert "<script>" not in as_html(tables)


def test_a_document_is_read_back(tables):
    read = from_document(json.loads(json.dumps(as_document("r", tables))))
    assert read == tables


@pytest.mark.parametrize(
    "document",
    [[], {}, {"generator": "allranks", "schema": 2, "backends": {}}, {"generator": "other", "backends": {}}]
    + [
        {"generator": "allranks", "schema": 1, "backends": {"mine": [row]}}
        for row in (1, {}, {"operation": "x", "tests": {}, "bad": []}, {"operation": "x", "tests": {"y": 1}, "bad": []})
    ],
)
def test_anything_else_is_no_document(document):
    with pytest.raises(ValueError, match=r".+"):
        from_document(document)


def test_changes_are_listed_with_bad_ones_first(tables):
    before = from_document(json.loads(json.dumps(as_document("r", tables))))
    now = tables_of(
        suite(
            {
                "a": (REDUCE, verdict(P, P, nodeid="a")),
                "d": ({"operation": "scatter", "dtype": "bool"}, verdict(T, T, nodeid="d")),
            }
        )
    )
    assert change_lines(changes(before, now)) == [
        "mine: scatter, bool: unsupported -> hangs",
        "mine: all_reduce, int32: wrong -> works",
        "mine: barrier, async, sub-group: works -> no test",
    ]
    assert changes(before, tables) == []
    assert changes({"other": {}}, tables) == []


def test_a_journal_has_the_tags_of_its_tests(tmp_path):
    records = [
        JobStarted(schema=2, run_id="r", cell="mine-w1", suite="s", attempt=1, world_size=1),
        Tagged(tests=("test_x.py::test_x",), tags=("operation=reduce", "dtype=", "nonsense")),
        Passed(nodeid="test_x.py::test_x", ranks=(0,), arrived=(1.0,), seconds=(0.1,), world_size=1),
    ]
    (tmp_path / "journal.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in records))
    [file] = read_journal(tmp_path / "journal.jsonl")
    assert file.tags == {"test_x.py::test_x": {"operation": "reduce"}}


@pytest.fixture
def merged(run_folder):
    """A merged run of one job, whose journal has tags."""
    job, nodeid = "gloo-w1-g0-env/s", "test_x.py::test_x"
    run_folder.manifest(job)
    run_folder.job(job, collected=[nodeid], world_size=1)
    records = [
        JobStarted(schema=2, run_id="r1", cell="gloo-w1-g0-env", suite="s", attempt=1, world_size=1),
        Tagged(tests=(nodeid,), tags=("operation=reduce",)),
        Passed(nodeid=nodeid, ranks=(0,), arrived=(1.0,), seconds=(0.1,), world_size=1),
        Finished(status=0),
    ]
    journal = run_folder.attempt(job) / "journal.jsonl"
    journal.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    merge(run_folder.path, observers=[CapabilitySection()])
    return run_folder.path


def test_a_merge_writes_the_table_beside_the_report_and_into_the_page(merged):
    tables = from_document(json.loads((merged / "conformance.json").read_text()))
    assert {key.name: cell.state for key, cell in tables["gloo"].items()} == {"reduce": Capability.WORKS}
    assert "| reduce | ok |" in (merged / "conformance.md").read_text()
    assert 'id="capabilities"' in (merged / "report.html").read_text()
    report = json.loads((merged / "report.json").read_text())
    assert report["suites"][0]["tests"][0]["tags"] == {"operation": "reduce"}


def test_a_merge_does_not_overwrite_a_table_of_somebody_else(merged):
    (merged / "conformance.json").write_text("{}")
    with pytest.raises(ResultsError, match=r"conformance\.json"):
        merge(merged, observers=[CapabilitySection()])


def test_a_run_without_tags_has_no_table(run_folder):
    run_folder.manifest("gloo-w2-g0-env/s")
    run_folder.both("gloo-w2-g0-env/s", {"test_x.py::test_x": "passed"})
    merge(run_folder.path, observers=[CapabilitySection()])
    assert list(run_folder.path.glob("conformance.*")) == []
    assert 'id="capabilities"' not in (run_folder.path / "report.html").read_text()


def test_allranks_merge_writes_the_table_again(merged, allranks):
    paths = [merged / name for name in ("conformance.json", "conformance.md", "report.html", "report.json")]
    before = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    code, out, _ = allranks("report", str(merged))
    assert code == 0
    assert "apabilities" not in out + (merged / "summary.md").read_text()
    assert [path.read_bytes() for path in paths] == before
