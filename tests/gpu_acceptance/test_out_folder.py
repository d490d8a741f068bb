import tarfile
from xml.etree import ElementTree as ET

import pytest

from gpu_acceptance.out_folder import OutFolder
from gpu_acceptance.verdict import Verdict


def verdict(part, outcome, *, pretended=False, text="<b>\x00 seen"):
    return Verdict(part=part, outcome=outcome, text=text, checks=1, seconds=1, pretended=pretended, figure="1 ms")


def read(path):
    return ET.fromstring(path.read_text())  # noqa: S314 - our own report


@pytest.fixture
def make_evidence(tmp_path):
    def make(part, **files):
        folder = tmp_path / "work" / part
        (folder / "deep" / part).mkdir(parents=True)
        for name, text in files.items():
            (folder / "deep" / part / f"{name}.txt").write_text(text)
        (folder / "output.txt").write_text(f"output of {part}")
        return folder

    return make


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    parts = ["part-1", "part-2", "part-3"]
    return lambda **about: OutFolder(
        path=tmp_path / "out", machine="a machine", **{"parts": parts, "pretended": False, **about}
    )


def test_all_files_are_whole_after_every_part(out, make_evidence, tmp_path):
    folder = out()
    for number, outcome in enumerate(("proved", "not possible here", "wrong"), start=1):
        folder.add(verdict(f"part-{number}", outcome), make_evidence(f"part-{number}", seen=f"evidence {number}"))
        report = read(tmp_path / "out" / "junit.xml")
        assert len(list(report.iter("testcase"))) == number
        with tarfile.open(tmp_path / "out" / "evidence.tar.gz") as archive:
            seen = archive.extractfile(f"part-{number}/deep/part-{number}/seen.txt").read()
            assert seen == f"evidence {number}".encode()
            assert len(archive.getnames()) == 2 * number
    suite = report.find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert summary.startswith(
        "# GPU acceptance: 1 proved, 1 not possible here, 1 wrong\n\n| part | result | seconds | "
    )
    assert "\n| part-1 | proved | 1.0 | 1 ms |\n| part-2 | not possible here | 1.0 | 1 ms |\n" in summary
    assert "- wrong: part-3 (1.0 s): <b>" in summary
    assert "output of part-2" in (tmp_path / "out" / "log.txt").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "PRETENDED" not in summary + page


def test_parts_are_in_their_order_and_those_that_have_not_ended_are_named(out, tmp_path):
    folder = out()
    for part in ("part-3", "part-1"):
        folder.add(verdict(part, "proved"))
    lines = (tmp_path / "out" / "summary.md").read_text().splitlines()
    assert lines[0] == "# GPU acceptance: 2 proved, 0 not possible here, 0 wrong, 1 not finished"
    assert [line.split(" | ")[0] for line in lines[4:7]] == ["| part-1", "| part-2", "| part-3"]
    assert lines[5] == "| part-2 | not finished | | |"
    assert "<td>part-2<td>not finished" in (tmp_path / "out" / "report.html").read_text()


def test_the_folder_is_flat_and_small(out, make_evidence, tmp_path):
    folder = out()
    for number in range(1, 4):
        evidence = make_evidence(f"part-{number}", large="x" * (2 << 20))
        folder.add(verdict(f"part-{number}", "proved", text="t" * 1000), evidence)
    files = list((tmp_path / "out").iterdir())
    assert {file.name for file in files} == {"evidence.tar.gz", "junit.xml", "log.txt", "report.html", "summary.md"}
    assert all(file.is_file() for file in files)
    assert sum(file.stat().st_size for file in files) < 1 << 20


def test_evidence_that_would_make_the_folder_too_large_is_left_out(out, make_evidence, tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_acceptance.out_folder._EVIDENCE", 400)
    folder = out()
    for number in range(1, 4):
        folder.add(verdict(f"part-{number}", "proved"), make_evidence(f"part-{number}", seen="evidence"))
    assert (tmp_path / "out" / "evidence.tar.gz").stat().st_size <= 400


def test_nothing_pretended_can_be_taken_for_real(out, make_evidence, tmp_path):
    folder = out(pretended=True, parts=["proved", "not-possible-here", "wrong"])
    for outcome in ("proved", "not possible here", "wrong"):
        folder.add(verdict(outcome.replace(" ", "-"), outcome, pretended=True), make_evidence(outcome))
    summary = (tmp_path / "out" / "summary.md").read_text().splitlines()
    assert summary[0].startswith("# PRETENDED")
    assert summary[0].endswith("Nothing here was run on a GPU")
    told = [line for line in summary if line.startswith(("- ", "| ")) and not line.startswith("| part")]
    assert len(told) == 6
    assert all("PRETENDED, " in line for line in told)
    cases = list(read(tmp_path / "out" / "junit.xml").iter("testcase"))
    assert all(case.get("name").startswith("PRETENDED.") for case in cases)
    assert all(case.find("system-out").text.startswith("PRETENDED, ") for case in cases)
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<tr><td") == page.count("PRETENDED, ") == 3
    assert "<title>PRETENDED" in page
    assert "== PRETENDED, proved" in (tmp_path / "out" / "log.txt").read_text()
