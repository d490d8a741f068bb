"""``--junit-xml`` on ranks that another launcher has started."""

import socket
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from long_lists import quick

from allranks.pytest_plugin import rank_reports
from allranks.pytest_plugin.rank_reports import RankReports
from allranks.testing.environment import RankEnvironment

SUITE = """
import pytest

def test_passes(rank): pass

def test_fails_on_rank_1(rank):
    assert rank == 0

def test_skips_on_all_ranks(process_group):
    pytest.skip("not here")
"""

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@pytest.fixture
def start(tmp_path, environment_without_ranks):
    """``start("report.xml", ...)``: runs a session for each rank, with this ``--junit-xml``; None omits the rank."""

    def start_all(*files, suite=SUITE):
        (tmp_path / "test_it.py").write_text(suite)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        size = str(len(files))
        environment = {
            **environment_without_ranks,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "ALLRANKS_RENDEZVOUS_TIMEOUT": "3" if None in files else "30",
            "TMPDIR": str(tmp_path),
        }
        sessions = [
            subprocess.Popen(
                [*PYTEST, f"--junit-xml={file}"],
                cwd=tmp_path,
                env={**environment, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, file in enumerate(files)
            if file is not None
        ]
        return [(session.communicate(timeout=90)[0], session.returncode) for session in sessions]

    return start_all


def outcomes(file):
    return {case.get("name"): [child.tag for child in case if child.tag != "properties"] for case in cases_of(file)}


def cases_of(file):
    return list(ET.parse(file).getroot().iter("testcase"))  # noqa: S314 - our own


@pytest.mark.thorough
def test_ranks_with_the_same_file_have_one_report(start, tmp_path):
    (tmp_path / "report.ranks").mkdir()
    (tmp_path / "report.ranks" / "rank-7.xml").write_text("<testsuites />")  # of an earlier run
    (first, code), (_, other_code) = start("report.xml", "report.xml")
    assert (code, other_code) == (1, 1)
    assert "rank 1 failed" in first
    assert first.rstrip().endswith(f"report of all 2 ranks: {tmp_path / 'report.xml'}")
    assert outcomes(tmp_path / "report.xml") == {
        "test_passes": [],
        "test_fails_on_rank_1": ["failure"],
        "test_skips_on_all_ranks": ["skipped"],
    }
    assert sorted(path.name for path in (tmp_path / "report.ranks").glob("rank-*")) == ["rank-0.xml", "rank-1.xml"]
    assert outcomes(tmp_path / "report.ranks" / "rank-0.xml")["test_fails_on_rank_1"] == []


@pytest.mark.thorough
def test_torchrun_ends_no_rank_before_the_report_is_written(tmp_path, environment_without_ranks):
    (tmp_path / "test_it.py").write_text(SUITE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *PYTEST[1:]]
    done = subprocess.run(
        [*torchrun, "--junit-xml=report.xml"],
        cwd=tmp_path,
        env=environment_without_ranks,
        capture_output=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 1
    assert outcomes(tmp_path / "report.xml")["test_fails_on_rank_1"] == ["failure"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("suite", "codes"),
    quick(
        1,
        [
            ("def test_it(rank): pytest.skip('not here')", [5, 0]),
            ("def test_it(process_group): pytest.skip('not here')\ndef test_other(): pytest.skip('nor here')", [5, 0]),
            ("@pytest.fixture\ndef lacking(rank): pytest.skip('not here')\ndef test_it(lacking): pass", [5, 0]),
            ("def test_it(rank): pytest.skip('not here')\ndef test_other(): pass", [0, 0]),
            ("@pytest.mark.xfail\ndef test_it(rank): assert 0", [0, 0]),
        ],
    ),
)
def test_ranks_that_execute_no_test_exit_as_their_merged_report_does(start, suite, codes):
    ended = start("report.xml", "report.xml", suite=f"import pytest\n{suite}\n")
    assert [code for _, code in ended] == codes
    assert ("No test executed" in ended[0][0]) == (codes[0] == 5)


@pytest.mark.thorough
def test_attributes_that_a_suite_records_are_no_error_of_the_merged_report(start):
    suite = "def test_it(rank, record_xml_attribute): record_xml_attribute('assay', 5)"
    assert [code for _, code in start("report.xml", "report.xml", suite=suite)] == [0, 0]


@pytest.mark.thorough
def test_ranks_with_different_files_keep_them(start, tmp_path):
    (first, code), _ = start("report-0.xml", "report-1.xml")
    assert code == 0
    assert "report of all" not in first
    assert [outcomes(tmp_path / f"report-{rank}.xml")["test_fails_on_rank_1"] for rank in (0, 1)] == [[], ["failure"]]
    assert list(tmp_path.glob("*.ranks")) == []


def test_the_report_of_a_suite_without_rank_tests_is_unchanged(start, tmp_path):
    assert [code for _, code in start("report.xml", "report.xml", suite="def test_plain(): pass")] == [0, 0]
    assert [case.get("classname") for case in cases_of(tmp_path / "report.xml")] == ["test_it"]
    assert list(tmp_path.glob("*.ranks")) == []


@pytest.mark.parametrize("absent", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_without_a_rank_there_is_no_report_and_an_error(start, tmp_path, absent):
    (tmp_path / "report.xml").write_text("of an earlier run")
    files = [None if rank == absent else "report.xml" for rank in (0, 1)]
    [(output, code)] = start(*files, suite="def test_passes(rank): pass")
    assert code == 1
    assert "could not be written" in output
    assert (tmp_path / "report.xml").exists() == (absent == 0)  # rank 0 removes it
    assert outcomes(tmp_path / "report.ranks" / f"rank-{1 - absent}.xml") == {"test_passes": []}


def test_a_report_is_received_from_another_node_in_chunks(tmp_path, monkeypatch):
    from torch.distributed import HashStore

    monkeypatch.setattr(rank_reports, "_CHUNK", 7)
    store = HashStore()
    reports = []
    for rank in (0, 1):
        environment = RankEnvironment(
            rank=rank, world_size=2, local_rank=0, local_world_size=1, backend="gloo", init_method="env", gpu_count=0
        )
        reports.append(RankReports(environment, SimpleNamespace(logfile=str(tmp_path / f"node {rank}" / "report.xml"))))
        (tmp_path / f"node {rank}" / "report.ranks").mkdir(parents=True)
    text = "<testsuites>" + "é" * 100 + "</testsuites>"
    (tmp_path / "node 1" / "report.ranks" / "rank-1.xml").write_text(text)
    reports[1]._send(store)
    reports[0]._receive(store, 1.0)
    assert (tmp_path / "node 0" / "report.ranks" / "rank-1.xml").read_text() == text
