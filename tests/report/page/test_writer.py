"""What the page carries, without a browser."""

import base64
import hashlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from long_lists import quick
from runs import case, failed, gloo_matrix, job, passed, rank, skipped, write_page

from allranks.errors import ResultsError
from allranks.protocol.records import JOURNAL, SCHEMA, Finished, Imported, JobStarted, Passed, encode
from allranks.report.judged import Share
from allranks.report.merging import merge
from allranks.report.page import case_list
from allranks.report.page.page import escaped
from allranks.report.results import TestVerdict
from allranks.report.status import Status

Unpacked = Callable[[Path], dict[str, Any]]
MEGABYTE = 1_000_000


def rows(carried: dict[str, Any]) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """Each row as the script reads it: job, name, verdict, extra."""
    names: list[str] = []
    for block in carried["blocks"]:
        names += block["s"]
        runs = zip(block["n"][::2], block["n"][1::2], strict=True)
        numbers = [first + step for first, count in runs for step in range(count)]
        for place, (number, letter) in enumerate(zip(numbers, block["v"], strict=True)):
            yield block["j"], names[number], letter, block["x"].get(str(place), {})


def test_every_test_is_carried_in_its_order(tmp_path: Path, unpacked: Unpacked) -> None:
    names = [f"t.py::test_{number}[ü𝄞{number % 7}]" for number in range(2500)]
    carried = unpacked(
        write_page(tmp_path, [job("a", "s", map(passed, names)), job("b", "s", map(passed, reversed(names)))])
    )
    assert [(at, name) for at, name, *_ in rows(carried)] == [(0, name) for name in names] + [
        (1, name) for name in reversed(names)
    ]


def test_verdicts_and_ranks_are_carried(tmp_path: Path, unpacked: Unpacked) -> None:
    tests = [
        passed("a"),
        failed("b"),
        skipped("c"),
        skipped("d", policy="pass"),
        case("e", [rank(0), rank(1, "crashed", at=1)]),
    ]
    carried = unpacked(write_page(tmp_path, [job("c", "s", tests)]))
    assert [letter for _, _, letter, _ in rows(carried)] == list("PFSKE")
    assert [extra["r"] for *_, extra in rows(carried)] == [
        "0,1:passed", "0:aborted 1:failed", "0,1:skipped", "0,1:skipped", "0:passed 1:crashed",
    ]  # fmt: skip


def test_a_page_is_the_same_when_it_is_written_again(tmp_path: Path) -> None:
    suites = gloo_matrix(lambda size, _: [failed("a", size), passed("b", size)])
    once = write_page(tmp_path, suites).read_bytes()
    assert write_page(tmp_path, suites).read_bytes() == once


def test_merging_writes_the_page_beside_the_junit_file(run_folder: Any, unpacked: Unpacked) -> None:
    run_folder.manifest("gloo-w2-g0-env/s")
    run_folder.both("gloo-w2-g0-env/s", {"t.py::a": "passed", "t.py::b": {"outcome": "failed", "message": "no"}})
    merged = merge(run_folder.path, environ={})
    assert merged.page == run_folder.path.resolve() / "report.html"
    carried = unpacked(merged.page)
    assert [(name, letter) for _, name, letter, _ in rows(carried)] == [("t.py::a", "P"), ("t.py::b", "F")]
    assert carried["rest"]["jobs"][0]["ranks"] == "0,1:passed"
    assert carried["rest"]["jobs"][0]["files"] == {"xml": "0,1"}


def test_the_page_says_of_what_and_where_the_run_was(run_folder: Any) -> None:
    said = {"started": "2026-11-27T18:46:48+00:00", "commit": "45f37ebe-dirty", "command": "allranks run <b>"}
    run_folder.manifest("gloo-w2-g0-env/s", host="host-1", **said)
    run_folder.both("gloo-w2-g0-env/s", {"t.py::a": "passed"}, engine="process")
    text = re.findall(r'<dl class="facts">(.*?)</dl>', merge(run_folder.path, environ={}).page.read_text())[0]
    facts = dict(re.findall(r"<dt>(.*?)</dt> <dd><bdi>(.*?)</bdi></dd>", text))
    assert facts == {
        "date": "2026-11-27 18:46:48 UTC", "host": "host-1", "commit": "45f37ebe-dirty", "engine": "process",
        "allranks": "0", "command": "allranks run &lt;b&gt;",
    }  # fmt: skip


def test_the_page_names_the_torch_of_the_journals_and_all_machines(part: Callable[[str], Any], tmp_path: Path) -> None:
    for host, name, torch in (("one", "gloo-w1-g0-env/s", "2.13.0"), ("two", "gloo-w1-g0-tcp/s", "2.12.1+cpu")):
        folder = part(host)
        folder.manifest(name, host=host, commit=f"commit-{host}")
        folder.job(name, collected=["t"], world_size=1)
        cell, suite = name.split("/")
        records = (
            JobStarted(schema=SCHEMA, run_id="r1", cell=cell, suite=suite, attempt=1, world_size=1),
            Imported(torch=torch, seconds=1.0),
            Passed(nodeid="t", ranks=(0,), arrived=(9.0,), seconds=(0.5,), world_size=1),
            Finished(status=0),
        )
        (folder.attempt(name) / JOURNAL).write_bytes(b"".join(encode(each) + b"\n" for each in records))
    merged = merge(tmp_path, environ={})
    assert not merged.failures
    assert f"<dd><bdi>{escaped('2.12.1+cpu, 2.13.0')}</bdi>" in merged.page.read_text()
    assert "<dt>host</dt> <dd><bdi>one, two</bdi>" in merged.page.read_text()
    assert "<dt>commit</dt> <dd><bdi>commit-one, commit-two</bdi>" in merged.page.read_text()


def test_what_is_unknown_of_a_run_is_left_out(tmp_path: Path) -> None:
    text = write_page(tmp_path, [job("c", "s", [passed("t")], engine="", torch="2.13.0+cpu")]).read_text()
    assert re.findall(r"<dt>(.*?)</dt> <dd><bdi>(.*?)</bdi></dd>", text) == [("torch", "2.13.0+cpu")]


def test_a_page_of_somebody_else_is_not_overwritten(run_folder: Any) -> None:
    run_folder.both("c/s", {"t.py::a": "passed"})
    foreign = run_folder.path / "report.html"
    foreign.write_text("<html>pytest-html's own")
    with pytest.raises(ResultsError, match=r"report\.html was not written by allranks"):
        merge(run_folder.path, environ={})
    assert foreign.read_text() == "<html>pytest-html's own"


def test_a_page_that_cannot_be_written_leaves_the_one_before(run_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder.both("c/s", {"t.py::a": "passed"})
    before = merge(run_folder.path, environ={}).page.read_bytes()

    def full(_: Path, __: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_page(run_folder.path, [])
    assert (run_folder.path / "report.html").read_bytes() == before
    assert not list(run_folder.path.glob(".report*"))


def test_the_policy_names_the_style_and_the_script_by_their_hashes(tmp_path: Path) -> None:
    text = write_page(tmp_path, []).read_text()
    policy = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)[0]
    assert policy.startswith("default-src 'none'; ")
    for name in ("style", "script"):
        content = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)[0]
        assert f"{name}-src 'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'" in policy


def large(failing: Callable[[int], TestVerdict], count: int = 20_000) -> Iterator[TestVerdict]:
    """Tests on 64 ranks, of which one in a hundred fails."""
    dice = random.Random(7)  # noqa: S311 - times of tests, not secrets
    good = passed("any", 64)
    for number in range(count):
        name = f"suites/collectives/test_{number % 40}.py::TestAll::test_case_{number % 97}[{number}-float32]"
        if number % 100 == 7:
            yield failing(number)
        else:
            yield TestVerdict(
                nodeid=name,
                classname="",
                name=name,
                verdict=good.verdict,
                ranks=[replace(good.ranks[0], duration=dice.expovariate(3)), *good.ranks[1:]],
            )


def alike(number: int) -> TestVerdict:
    text = "".join(f"E   tensor {place} of {number} differs on this rank: 1.0 != 2.0\n" for place in range(42))
    return case(
        f"f.py::test_{number}", [rank(n, "failed", at=1.0 + n, message="AssertionError", text=text) for n in range(64)]
    )


def different(number: int, outcome: str = "failed") -> TestVerdict:
    """Each rank has 2 kB to say that no other rank, and no other test, says: the worst that there can be."""
    dice = random.Random(number)  # noqa: S311 - text that does not compress, not a secret
    ranks = [
        rank(n, outcome, at=1.0 + n, message=f"m {dice.random()}", text=dice.randbytes(1000).hex()) for n in range(64)
    ]
    return case(f"f.py::test_{number}", ranks)


@pytest.mark.thorough
@pytest.mark.parametrize("failing", [alike, different])
def test_a_page_of_twenty_thousand_tests_on_64_ranks_has_less_than_two_megabytes(
    tmp_path: Path, unpacked: Unpacked, failing: Callable[[int], TestVerdict]
) -> None:
    path = write_page(tmp_path, [job("gloo-w64-g0-env", "s", large(failing))])
    assert path.stat().st_size < 2 * MEGABYTE
    carried = list(rows(unpacked(path)))
    assert len(carried) == 20_000
    assert sum(letter == "F" for _, _, letter, _ in carried) == 200


@pytest.mark.thorough
def test_two_kilobytes_are_carried_whole_where_ranks_say_the_same(tmp_path: Path, unpacked: Unpacked) -> None:
    path = write_page(tmp_path, [job("gloo-w64-g0-env", "s", large(alike))])
    chunks = unpacked(path)["chunks"]
    texts = [detail["r"][0]["t"] for chunk in chunks for detail in chunk]
    assert len(texts) == 200
    assert min(map(len, texts)) > 2000
    assert not any("characters cut here" in text for text in texts)


def test_what_passed_gives_way_in_a_page_that_is_too_large_and_failures_stay(
    tmp_path: Path, unpacked: Unpacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_list, "LIST_BUDGET", 20_000)
    path = write_page(tmp_path, [job("gloo-w64-g0-env", "s", large(alike))])
    carried = unpacked(path)
    letters = [letter for _, _, letter, _ in rows(carried)]
    assert letters.count("F") == 200
    assert letters.count("P") + carried["rest"]["out"] == 19_800
    assert carried["rest"]["out"] > 10_000
    assert "passed. junit.xml, next to this page, has all of them" in path.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(("outcome", "words"), quick(1, [("failed", "failed"), ("errored", "errors")]))
def test_failures_that_do_not_fit_are_counted_and_the_page_says_where_they_are(
    tmp_path: Path, unpacked: Unpacked, monkeypatch: pytest.MonkeyPatch, outcome: str, words: str
) -> None:
    monkeypatch.setattr(case_list, "FAILURES_BUDGET", 20_000)
    tests = [different(number, outcome) for number in range(3001)]
    path = write_page(tmp_path, [job("c", "s", tests[:-1]), job("d", "s", tests[-1:])])
    carried = unpacked(path)
    listed = sum(letter == words[0].upper() for _, _, letter, _ in rows(carried))
    assert listed < 3000
    assert carried["rest"]["out"] == 3001 - listed
    assert sum(group["n"] for group in carried["rest"]["groups"]) == 3001
    assert f"Not listed: {3001 - listed:,} {words}" in path.read_text()
    assert "junit.xml, next to this page, has all of them" in path.read_text()


def test_only_the_first_of_many_failures_have_texts(
    tmp_path: Path, unpacked: Unpacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_list, "MOST_DETAILS", 10)
    path = write_page(tmp_path, [job("c", "s", [failed(f"t{number}") for number in range(50)])])
    assert sum(len(chunk) for chunk in unpacked(path)["chunks"]) == 10
    assert "No text is shown for 40 failures. junit.xml" in path.read_text()


def test_names_beyond_what_memory_has_room_for_are_counted(
    tmp_path: Path, unpacked: Unpacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_list, "MOST_NAMES", 10)
    path = write_page(tmp_path, [job("c", "s", [passed(f"t{number}") for number in range(50)])])
    assert unpacked(path)["rest"]["out"] == 40


def test_texts_give_way_before_failures_do(tmp_path: Path, unpacked: Unpacked, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [limit for limit in case_list._LIMITS if limit.until]
    monkeypatch.setattr(
        case_list,
        "_LIMITS",
        tuple(replace(limit, until=100_000 * n) for n, limit in enumerate(limits, 1)),
    )
    path = write_page(tmp_path, [job("c", "s", map(different, range(300)))])
    carried = unpacked(path)
    assert sum(letter == "F" for _, _, letter, _ in rows(carried)) == 300
    cut = 300 - sum(len(chunk) for chunk in carried["chunks"])
    assert cut > 0
    assert f"No text is shown for {cut} failures. junit.xml" in path.read_text()


def test_a_flaky_pass_is_no_evidence_for_an_axis(tmp_path: Path, unpacked: Unpacked) -> None:
    def tests(size: int, _: str) -> list[TestVerdict]:
        return [
            failed("a", size) if size == 4 else passed("a", size),
            failed("b", size) if size == 4 else case("b", [rank(0)], earlier=[[rank(0, "failed", at=1)]]),
        ]

    rest = unpacked(write_page(tmp_path, gloo_matrix(tests)))["rest"]
    assert rest["tests"] == {"collectives": {"0": 0}}
    assert rest["blames"][0]["p"] == "world_size >= 4"


def test_shards_of_a_suite_are_one_suite_for_the_evidence(tmp_path: Path, unpacked: Unpacked) -> None:
    suites = gloo_matrix(lambda size, _: [failed("a", size) if size == 4 else passed("a", size)])
    turned = [
        job(
            suite.cell,
            f"c@{number % 2 + 1}of2",
            suite.tests,
            axes=suite.axes,
            share=Share(suite="c", number=number % 2 + 1, count=2),
        )
        for number, suite in enumerate(suites)
    ]
    rest = unpacked(write_page(tmp_path, turned))["rest"]
    assert rest["tests"] == {"c": {"0": 0}}


def test_a_rank_that_was_aborted_by_rank_0_names_it(tmp_path: Path, unpacked: Unpacked) -> None:
    tests = [case("t.py::a", [rank(0, "failed", at=1), rank(1, "aborted", at=2, caused_by=0, message="in all_reduce")])]
    [[detail]] = unpacked(write_page(tmp_path, [job("c", "s", tests)]))["chunks"]
    assert [group.get("by") for group in detail["r"]] == [None, 0]


STACK = """\
Current thread 0x00007f (most recent call first):
  File "/repo/t.py", line 3 in test_hang
  File "/v/site-packages/_pytest/python.py", line 187 in pytest_pyfunc_call
  File "/v/site-packages/pluggy/_callers.py", line 53 in _multicall
  File "/allranks/agent/rank/rank.py", line 196 in _run_test"""


def test_frames_of_tools_are_folded_wherever_a_stack_is_shown(tmp_path: Path, unpacked: Unpacked) -> None:
    hung = [rank(0, "timed_out", nodeid="t.py::hung", at=1, message="hung", text=STACK)]
    page = write_page(tmp_path, [job("c", "s", [case("t.py::hung", hung, earlier=[hung])])])
    [[detail]] = unpacked(page)["chunks"]
    for text in (detail["r"][0]["t"], detail["a"][0]["t"]):
        assert "line 3 in test_hang" in text
        assert "[... 3 frames of pytest, pluggy and allranks ...]" in text
        assert "_multicall" not in text


def test_the_page_carries_the_command_in_the_form_that_the_command_line_takes(
    tmp_path: Path, unpacked: Unpacked
) -> None:
    share = Share(suite="s", number=2, count=4)
    told = unpacked(write_page(tmp_path, [job("c", "s@2of4", [passed("t.py::a")], share=share, seed=7)]))
    assert told["rest"]["jobs"][0]["rerun"] == [
        ["allranks", "run", "c", "--suite", "s@2of4", "--seed", "7"],
        ["allranks", "run", "c", "--suite", "s", "--seed", "7", "--", "{}"],
    ]


def test_each_status_has_a_word_and_a_glyph_in_the_script(tmp_path: Path, unpacked: Unpacked) -> None:
    statuses = unpacked(write_page(tmp_path, [job("c", "s", [failed("t")])]))["rest"]["statuses"]
    assert statuses[0] == ["F", "failed"]
    script = resources.files("allranks.report.page").joinpath("page.js").read_text(encoding="utf-8")
    glyphs = script.partition("const GLYPHS = {")[2].partition("}")[0]
    assert set(re.findall(r"(\w):", glyphs)) == {letter for letter, _ in statuses} == set(Status) - {Status.ABSENT}
