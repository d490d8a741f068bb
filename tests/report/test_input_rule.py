"""Which files a merge reads, and what becomes of all others: nothing is guessed, and no rank is lost silently."""

import os
from pathlib import Path

import pytest

from allranks.errors import AllranksError, ExitCode, ResultsError, UsageError
from allranks.report.input_rule import JOBS, InputRule, RankPattern
from allranks.report.judge.exit_code import exit_code
from allranks.report.merging import merge

CASE = '<testcase classname="t" name="x"/>'
RED = '<testsuites><testsuite><testcase name="t"><failure/></testcase></testsuite></testsuites>'
JOB = "gloo-w4-g0-env/suite"


@pytest.fixture
def ranks(tmp_path):
    """Writes the XML of ranks with one test that passes, below a folder."""
    root = tmp_path / "results"

    def write(*places, world_size=None):
        said = f'<properties><property name="allranks.world_size" value="{world_size}"/></properties>'
        for place in places:
            path = root / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"<testsuite>{said if world_size else ''}{CASE}</testsuite>")
        return root

    return write


def code(root, **rule):
    """The exit code of a merge; that of its error if there is one."""
    try:
        return exit_code(merge(root, InputRule(**rule), environ={}), nothing_ran_allowed=False)
    except AllranksError as error:
        return error.exit_code


def messages(root, **rule):
    """The messages of all that went wrong, of the job's and of its tests."""
    found = []
    merge(root, InputRule(**rule), environ={}, observers=[found.append])
    return [test.verdict.message for suite in found for test in suite.tests if test.verdict.is_bad]


def error(root, **rule):
    with pytest.raises(UsageError) as caught:
        merge(root, InputRule(**rule), environ={})
    assert caught.value.remedy
    assert not (root / "junit.xml").exists()
    return caught.value


def form(text):
    return {"pattern": RankPattern(text)}


def lost(rank):
    return [f"rank {rank} has no file.", f"rank {rank} is missing: no result arrived."]


FLAT = [f"rank-{rank}.xml" for rank in range(4)]


def test_the_ranks_of_a_job_are_in_a_folder_of_its_cell_and_suite(ranks):
    root = ranks(*(f"{JOB}/{name}" for name in FLAT), "gloo-w1-g0-env/other/rank-0.xml")
    run = merge(root, environ={})
    assert [suite.name for suite in run.suites] == ["gloo-w1-g0-env / other", "gloo-w4-g0-env / suite"]
    assert (run.counts.passed, code(root)) == (2, ExitCode.OK)


def test_the_files_of_torchrun_are_one_job(ranks):
    root = ranks(*FLAT)
    (root / "rank-0.log").write_text("a log")
    run = merge(root, InputRule(world_size=4), environ={})
    assert [suite.name for suite in run.suites] == ["results / tests"]
    assert code(root, world_size=4) is ExitCode.OK


def test_without_a_stated_number_of_ranks_the_merge_asks_for_it(ranks):
    for places in (FLAT, FLAT[:3], [f"cell/suite/{name}" for name in FLAT]):
        told = error(ranks(*places))
        assert told.what.startswith("The number of ranks of ")
        assert "--world-size N" in told.remedy
        ranks()
        for place in places:
            (ranks() / place).unlink()


def test_a_rank_that_is_lost_is_missing_whoever_states_their_number(ranks, tmp_path):
    assert messages(ranks(*FLAT[:3]), world_size=4) == lost(3)
    ranks(*FLAT[:3], world_size=4)
    assert messages(tmp_path / "results") == lost(3)
    for name in FLAT[:3]:
        (tmp_path / "results" / name).unlink()
    assert messages(ranks(*(f"{JOB}/{name}" for name in FLAT[1:]))) == lost(0)


def test_ranks_without_a_file_are_an_error_whatever_worlds_the_tests_of_the_others_state(ranks):
    root = ranks("rank-0.xml")
    own = '<properties><property name="allranks.world_size" value="1"/></properties>'
    (root / "rank-0.xml").write_text(f'<testsuite name="x"><testcase name="a">{own}</testcase></testsuite>')
    assert messages(root, world_size=4) == ["ranks 1-3 have no file."]
    assert code(root, world_size=4) is ExitCode.UNACCOUNTED
    assert code(root, world_size=1) is ExitCode.OK


@pytest.mark.parametrize(
    ("places", "states", "option", "told"),
    [
        (FLAT, 4, 2, "--world-size states 2 ranks, but rank-0.xml states 4 ranks."),
        ([f"{JOB}/{name}" for name in FLAT], 8, None, "the cell states 4 ranks, but rank-0.xml states 8 ranks."),
        ([f"{JOB}/{name}" for name in FLAT], None, 3, "the cell states 4 ranks, but --world-size states 3 ranks."),
        (FLAT, None, 3, "rank-3.xml belongs to rank 3, but this job's highest rank is 2."),
        (
            [*FLAT, "rank-00.xml"],
            None,
            4,
            "rank-0.xml and rank-00.xml belong to the same rank, 0: the worse outcome of each",
        ),
        ([*FLAT, "rank-99999999999999999999.xml"], None, 4, "rank-99999999999999999999.xml states rank 9999"),
    ],
)
def test_contradictory_ranks_are_an_error(ranks, places, states, option, told):
    root = ranks(*places, world_size=states)
    assert messages(root, world_size=option)[0].startswith(told)
    assert code(root, world_size=option) is ExitCode.UNACCOUNTED


def test_files_that_state_different_numbers_of_ranks_are_an_error(ranks):
    ranks("rank-0.xml", world_size=2)
    told = messages(ranks("rank-1.xml", world_size=1))
    assert told == ["rank-0.xml states 2 ranks, but rank-1.xml states 1 rank."]


def test_a_file_that_states_another_rank_than_its_path_is_an_error(ranks):
    root = ranks("rank-0.xml", "rank-1.xml")
    text = f'<testsuite><properties><property name="allranks.rank" value="0"/></properties>{CASE}</testsuite>'
    (root / "rank-1.xml").write_text(text)
    assert messages(root, world_size=2) == ["rank-1.xml states rank 0 in allranks.rank, but its path states rank 1."]


@pytest.mark.parametrize("size", ["0", "-1", "many", "9" * 5000])
def test_a_number_of_ranks_that_no_job_has_is_not_counted_as_stated(ranks, size):
    assert code(ranks("rank-0.xml", world_size=size)) is not ExitCode.OK


@pytest.mark.parametrize(
    "names",
    [
        ["job_rank1.xml", "job_rank2.xml"],
        ["r0.xml", "r1.xml"],
        ["worker0/junit.xml", "worker1/junit.xml"],
        ["gpu0/rank-0.xml", "gpu1/rank-0.xml"],
        ["a/b/c/rank-0.xml"],
        ["RANK-0.XML"],
        ["rank-0.xml.gz"],
        ["rank-.xml", "rank--1.xml", "rank-0x1.xml", "rank-٣.xml", "rank- 1.xml"],
        ["TEST-t.xml", "coverage.xml"],
        ["gloo-w1-g0-env/s/attempt-1/rank-0.xml", "gloo-w1-g0-env/s/attempt-1/job.json"],
    ],
)
def test_names_that_do_not_match_are_one_error_that_quotes_them(ranks, names):
    told = error(ranks(*names))
    assert told.what.startswith("There is nothing to merge in ")
    assert all(name in told.why for name in sorted(names)[:3])
    assert "{cell}/{suite}/rank-{rank}.xml or rank-{rank}.xml" in told.why


def test_a_folder_without_files_has_nothing_to_merge(tmp_path):
    assert error(tmp_path).why.endswith("rank-{rank}.xml or rank-{rank}.xml.")


def symlink(target):
    return lambda path: path.symlink_to(target)


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "rank-3.xml").write_text(RED)
    return folder


UNREAD = {
    "TEST-t.xml": RED,
    "RANK-3.XML": RED,
    ".rank-3.xml": RED,
    ".hidden/rank-3.xml": RED,
    "sub/rank-3.xml": RED,
    "rank-3.zip": "",
    "machine-3.tar.gz": "",
    "machine-3.tgz": "",
    "rank-3.xml.zst": "",
    "logs.tar.Z": "",
    "x.lzma": "",
    "x.tzst": "",
    "x.lz": "",
    "x.xml.br": "",
    "x.jar": "",
    "x.CAB": "",
    "journal.jsonl": "",
    "coverage.xml": "<coverage/>",
    "report/junit.xml": '<testsuites name="allranks"/>',
    "rank-3 (1).xml": RED,
    os.fsdecode(b"rank-\xff.xml"): RED,
    "a\nb.xml": RED,
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", UNREAD)
def test_what_could_have_results_and_is_not_read_is_an_error_unless_it_is_ignored(ranks, name):
    root = ranks(*FLAT)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(UNREAD[name])
    [told] = messages(root, world_size=4)
    shown = name.encode(errors="replace").decode().replace("?", "�").replace("\n", " ")
    assert told == f"{shown} could have results, but was not read."
    assert code(root, world_size=4) is ExitCode.UNACCOUNTED
    assert code(root, world_size=4, ignore=("nothing", name)) is ExitCode.OK


@pytest.mark.parametrize(
    "name", ["rank-3.xml.bak", "rank-3.xml.part", "rank-3", "TEST-t.junit", "rank-3.log", "x.json"]
)
def test_a_file_that_is_neither_xml_nor_an_archive_is_no_result(ranks, name):
    root = ranks(*FLAT)
    (root / name).write_text(RED)
    assert code(root, world_size=4) is ExitCode.OK
    (root / "rank-3.xml").unlink()
    assert messages(root, world_size=4) == lost(3)


def test_many_unread_files_are_one_error_with_their_number(ranks):
    root = ranks(*FLAT, *(f"TEST-{number}.xml" for number in range(12)))
    assert messages(root, world_size=4) == [
        "TEST-0.xml, TEST-1.xml, TEST-10.xml and 9 more could have results, but were not read."
    ]


def test_jobs_below_a_folder_that_has_ranks_itself_are_not_read(ranks):
    root = ranks("rank-0.xml", f"{JOB}/rank-0.xml")
    assert messages(root, world_size=1)[0].startswith(f"{JOB}/rank-0.xml could have results")


@pytest.mark.parametrize(
    "pattern", ["extra", "extra/*", "*extra*", "ext?a", "*.xml", "extra/", "./extra", "**/TEST-t.xml", "**/extra"]
)
def test_an_ignored_folder_is_ignored_with_all_below_it(ranks, pattern):
    root = ranks(*FLAT, "extra/deep/TEST-t.xml")
    assert code(root, world_size=4, ignore=(pattern,)) is ExitCode.OK


@pytest.mark.parametrize("pattern", ["xtra", "EXTRA", "?", "", ".", "deep/*"])
def test_a_pattern_that_does_not_match_ignores_nothing(ranks, pattern):
    root = ranks(*FLAT, "extra/deep/TEST-t.xml")
    assert code(root, world_size=4, ignore=(pattern,)) is ExitCode.UNACCOUNTED
    notes = merge(root, InputRule(world_size=4, ignore=(pattern,)), environ={}).notes
    assert any(f"--ignore {pattern!r} matches no file that needs to be ignored." in note for note in notes)


def test_a_leading_double_star_stands_for_the_folder_itself_too(ranks):
    assert code(ranks(*FLAT, "TEST-t.xml"), world_size=4, ignore=("**/TEST-t.xml",)) is ExitCode.OK


@pytest.mark.parametrize("name", ["junit.xml", "report.html", "report.json", "summary.md"])
def test_a_file_of_another_program_in_the_place_of_a_report_is_not_overwritten(ranks, name):
    root = ranks(*FLAT)
    (root / name).write_text("# Our summary")
    with pytest.raises(ResultsError) as caught:
        merge(root, InputRule(world_size=4), environ={})
    assert (root / name).read_text() == "# Our summary"
    assert "rename it and, if it is XML, add --ignore NAME." in caught.value.remedy
    (root / name).rename(root / f"own-{name}")
    assert code(root, world_size=4, ignore=(f"own-{name}",)) is ExitCode.OK
    assert code(root, world_size=4, ignore=(f"own-{name}",)) is ExitCode.OK


def test_a_file_in_place_of_the_folder_is_told_from_a_folder_that_is_absent(ranks):
    path = ranks(*FLAT) / "rank-0.xml"
    with pytest.raises(UsageError, match="is a file, not a results folder") as caught:
        merge(path, environ={})
    assert f"allranks show {path}" in caught.value.remedy


def test_results_that_are_read_cannot_be_ignored(ranks):
    root = ranks(*FLAT)
    (root / "rank-1.xml").write_text(f"<testsuite>{CASE.replace('/>', '><failure/></testcase>')}</testsuite>")
    assert code(root, world_size=4, ignore=("*",)) is ExitCode.TESTS_FAILED


def test_a_merge_that_ignores_everything_has_nothing_to_merge(ranks):
    told = error(ranks("TEST-t.xml"), ignore=("*",))
    assert told.what.startswith("There is nothing to merge in ")


def test_a_link_to_a_folder_elsewhere_is_an_error_and_one_to_a_folder_here_is_none(ranks, elsewhere):
    root = ranks(*(f"{JOB}/{name}" for name in FLAT))
    (root / "latest").symlink_to("gloo-w4-g0-env")
    (root / "notes").symlink_to(__file__)
    assert code(root) is ExitCode.OK
    (root / "gloo-w1-g0-env").symlink_to(elsewhere)
    assert messages(root) == ["gloo-w1-g0-env could have results, but was not read."]
    assert code(root, ignore=("gloo-w1-*",)) is ExitCode.OK


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path, other: path.symlink_to(other / "rank-3.xml"), "rank-3.xml is a link, not a regular file"),
        (lambda path, _: path.symlink_to("rank-0.xml"), "rank-3.xml is a link, not a regular file"),
        (lambda path, _: path.symlink_to("nowhere"), "rank-3.xml is a link, not a regular file"),
        (lambda path, _: path.mkdir(), "rank-3.xml is a folder, not a regular file"),
        (lambda path, _: os.mkfifo(path), "rank-3.xml is a FIFO, not a regular file"),
    ],
)
def test_what_has_the_name_of_a_rank_and_is_no_file_is_an_error(ranks, elsewhere, make, told):
    root = ranks(*FLAT[:3])
    make(root / "rank-3.xml", elsewhere)
    assert messages(root, world_size=4)[0].startswith(told)
    assert code(root, world_size=4) is ExitCode.UNACCOUNTED
    assert "\nReplace it with the file itself." in (root / "junit.xml").read_text()


@pytest.mark.parametrize("text", ["", "<testsuite><testcase"])
def test_a_file_that_is_cut_has_a_remedy(ranks, text):
    root = ranks(*FLAT)
    (root / "rank-3.xml").write_text(text)
    assert code(root, world_size=4) is ExitCode.UNACCOUNTED
    assert "\nCopy the results of this job again, or rerun it." in (root / "junit.xml").read_text()


def test_a_folder_that_cannot_be_read_ends_the_merge_and_is_named(ranks, monkeypatch):
    root, scan = ranks(*(f"{JOB}/{name}" for name in FLAT)), os.scandir

    def refuse(path):
        if Path(path).name == "suite":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(ResultsError) as caught:
        merge(root, environ={})
    assert "suite: Permission denied" in caught.value.why


def test_a_merged_report_is_no_input(ranks):
    root = ranks(*(f"{JOB}/{name}" for name in FLAT))
    for place in ("junit.xml", "junit-2.xml", f"{JOB}/junit.xml", "test-reports/python-pytest/t/t-1.xml"):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text('<testsuites name="allranks" tests="0"/>')
    assert code(root) is ExitCode.OK
    (root / "test-reports/python-pytest/t/t-2.xml").write_text(RED)
    assert messages(root)[0].startswith("test-reports/python-pytest/t/t-2.xml could have results")


def test_the_xml_of_a_rank_that_looks_like_a_merged_report_is_read(ranks):
    root = ranks("rank-0.xml")
    (root / "rank-1.xml").write_text(RED.replace("<testsuites>", '<testsuites name="allranks">').replace('"t"', '"x"'))
    assert code(root, world_size=2) is not ExitCode.OK


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ("{cell}/{suite}/rank-{rank}.xml", "a/b/rank-3.xml", ("a", "b", 3)),
        ("./{suite}//r{rank}.xml", "b/r03.xml", ("", "b", 3)),
        ("out/rank{rank}/junit.xml", "out/rank12/junit.xml", ("", "", 12)),
        ("{rank}-{suite}.xml", "1-2-x.xml", ("", "2-x", 1)),
        ("a+[b](.)|^$-{rank}.xml", "a+[b](.)|^$-1.xml", ("", "", 1)),
        ("{cell}.{suite}.{rank}.xml", "gloo-w2.col.1.xml", ("gloo-w2", "col", 1)),
        ("{rank}.XML", "1.XML", ("", "", 1)),
        ("{cell}/{suite}/rank-{rank}.xml", "x/a/b/rank-3.xml", None),
        ("{cell}/{suite}/rank-{rank}.xml", "/b/rank-3.xml", None),
        ("a.{rank}.xml", "ab1.xml", None),
        ("{suite}{rank}.xml", "a12.xml", None),
        ("{cell}-{suite}-{rank}.xml", "a-b-c-1.xml", None),
        ("rank-{rank}.xml", "rank-1.xml\n", None),
    ],
)
def test_a_placeholder_is_a_part_of_one_name_that_can_be_found_in_one_way(text, place, found):
    assert RankPattern(text).match(Path(place)) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "It needs {rank}"),
        ("rank-0.xml", "It needs {rank}"),
        ("{rank}/{rank}.xml", "may have each placeholder once"),
        ("{Rank}.xml", "{Rank} is not a placeholder: use {cell}, {suite}, {rank}."),
        ("{}/{rank}.xml", "{} is not a placeholder"),
        ("/tmp/rank-{rank}.xml", "It leads out of the merged folder"),
        ("../rank-{rank}.xml", "It leads out of the merged folder"),
        ("a/../rank-{rank}.xml", "It leads out of the merged folder"),
        ("**/rank-{rank}.xml", "It has * or ?, which only --ignore accepts"),
        ("rank?{rank}.xml", "It has * or ?"),
        ("rank-{rank}.json", "It does not end in .xml."),
        ("rank-{rank}", "It does not end in .xml."),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_with_its_reason(text, why):
    with pytest.raises(UsageError, match="is not valid") as caught:
        RankPattern(text)
    assert why in caught.value.why
    assert JOBS.text in caught.value.remedy


def test_a_pattern_states_cell_suite_and_rank(ranks):
    root = ranks("gloo-w2-g0-env.sums.r0.xml", "gloo-w2-g0-env.sums.r1.xml")
    run = merge(root, InputRule(**form("{cell}.{suite}.r{rank}.xml")), environ={})
    assert [(suite.name, suite.counts.passed) for suite in run.suites] == [("gloo-w2-g0-env / sums", 1)]


@pytest.mark.parametrize("text", ["other/{rank}.xml", "RANK-{rank}.xml"])
def test_a_pattern_that_matches_nothing_is_an_error_that_quotes_it_and_what_there_is(ranks, text):
    told = error(ranks("abc12.xml", "rank-0.xml"), world_size=1, **form(text))
    assert f"no file that matches {text}. It has abc12.xml, rank-0.xml." in told.why


def test_a_file_that_matches_in_two_ways_is_named(ranks):
    root = ranks("a-b-c-0.xml")
    told = error(root, world_size=1, **form("{cell}-{suite}-{rank}.xml"))
    assert told.what == "a-b-c-0.xml matches --ranks-xml '{cell}-{suite}-{rank}.xml' in two ways."
    ranks("a-b-0.xml")
    assert code(root, world_size=1, ignore=("a-b-c-*",), **form("{cell}-{suite}-{rank}.xml")) is ExitCode.OK


def test_ranks_below_another_folder_are_found_by_what_the_error_says(ranks):
    root = ranks(*(f"results-1/{JOB}/{name}" for name in FLAT))
    pattern = f"results-1/{JOBS.text}"
    assert error(root).remedy == f"Merge {root}/results-1, or add --ranks-xml '{pattern}'."
    assert code(root, **form(pattern)) is ExitCode.OK


def test_the_folder_of_a_cell_without_results_is_an_error_unless_it_is_ignored(ranks):
    root = ranks(*(f"{JOB}/{name}" for name in FLAT))
    (root / "gloo-w2-g0-tcp/suite").mkdir(parents=True)
    assert messages(root) == ["gloo-w2-g0-tcp could have results, but was not read."]
    assert code(root, ignore=("gloo-w2-*",)) is ExitCode.OK


def test_what_a_given_pattern_does_not_match_is_not_read(ranks):
    root = ranks("r0.xml", "rank-0.xml")
    assert messages(root, world_size=1, **form("r{rank}.xml"))[0].startswith("rank-0.xml could have results")


@pytest.mark.parametrize("rule", [{"world_size": 2}, form("rank-{rank}.xml")])
def test_the_options_for_the_xml_of_ranks_are_refused_for_the_folder_of_a_run(run_folder, rule):
    run_folder.both("gloo-w2-g0-env/s", {"t.py::x": "passed"})
    told = error(run_folder.path, **rule)
    assert told.what.startswith("--ranks-xml and --world-size are only for the XML of ranks")
    assert told.why == f"It has {run_folder.path}/cells."


@pytest.mark.parametrize(
    ("place", "text"), [("nb/cells/c.txt", "a notebook"), ("run.json", '{"runner": "x"}'), ("cells/a/b/c", "")]
)
def test_what_only_has_a_name_of_a_run_does_not_prevent_that_ranks_are_read(ranks, place, text):
    root = ranks(*FLAT)
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).write_text(text)
    assert code(root, world_size=4) is ExitCode.OK


def test_the_folder_of_a_run_that_makes_options_useless_is_named_by_what_makes_it_one(ranks):
    root = ranks(*FLAT)
    (root / "nb").mkdir()
    (root / "nb/run.json").write_text("{}\n{}")
    assert error(root, world_size=4).why == f"It has {root}/nb/run.json."
    assert code(root, world_size=4, ignore=("nb/run.json",)) is ExitCode.OK


def test_the_xml_of_ranks_beside_a_run_is_not_read(run_folder):
    run_folder.both("gloo-w2-g0-env/s", {"t.py::x": "passed"})
    (run_folder.path / "rank-0.xml").write_text(RED)
    assert messages(run_folder.path)[0].startswith("rank-0.xml could have results")


def test_what_a_run_has_besides_its_jobs_is_no_input(run_folder):
    run_folder.manifest("gloo-w2-g0-env/s")
    run_folder.both("gloo-w2-g0-env/s", {"t.py::x": "passed"})
    attempt = run_folder.attempt("gloo-w2-g0-env/s")
    for path in (run_folder.path / "coverage/coverage.xml", attempt / "own/TEST-t.xml", attempt / "core.gz"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(RED)
    (run_folder.path / "junit.xml").write_text('<testsuites name="allranks"/>')
    assert code(run_folder.path) is ExitCode.OK


def test_a_run_in_a_hidden_folder_or_in_another_run_is_a_part_like_others(part, tmp_path):
    for place, job in (("outer", "gloo-w2-g0-env/s"), ("outer/.inner/r1", "gloo-w2-g0-tcp/s")):
        part(place).manifest(job)
        part(place).both(job, {"t.py::x": "passed"}, run_id="r1")
    assert merge(tmp_path / "gathered", environ={}).counts.passed == 2


def test_an_attempt_without_a_journal_has_no_rank_by_another_name(run_folder):
    run_folder.manifest("gloo-w2-g0-env/s")
    run_folder.both("gloo-w2-g0-env/s", {"t.py::x": "passed"})
    path = run_folder.attempt("gloo-w2-g0-env/s") / "rank-1.xml"
    path.rename(path.with_name("rank-1.xml.bak"))
    assert messages(run_folder.path) == lost(1)
