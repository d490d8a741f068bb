"""Reading a job's files on several cores comes to the same as reading them one by one."""

import pytest

from allranks.report import reading
from allranks.report.reading import read_ranks


def document(tests):
    return f"<testsuites><testsuite>{''.join(tests)}</testsuite></testsuites>"


@pytest.fixture
def files(tmp_path):
    """Ranks with the same tests, one with other tests, one broken and one that is absent."""
    same = [f'<testcase classname="t" name="x{number}" time="0.5"/>' for number in range(50)]
    contents = [document(same)] * 4 + [document(same[:7]), document(same)[:-400], document(same)]
    for rank, content in enumerate(contents):
        (tmp_path / f"rank-{rank}.xml").write_text(content)
    return [tmp_path / f"rank-{rank}.xml" for rank in range(len(contents) + 1)]


def test_several_processes_read_what_one_reads(files, monkeypatch):
    one = read_ranks(files)
    monkeypatch.setattr(reading, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(reading, "_cores", lambda: 3)
    several = read_ranks(files)
    assert [(file.rank, file.results, file.problem) for file in several] == [
        (file.rank, file.results, file.problem) for file in one
    ]


def test_ranks_that_ran_the_same_tests_share_their_names(files):
    first, second, *_ = read_ranks(files)
    assert first.keys is second.keys


def test_small_files_are_read_without_a_process_more(files, monkeypatch):
    monkeypatch.setattr(reading.multiprocessing, "get_context", lambda _: pytest.fail("a pool was made"))
    assert len(read_ranks(files)) == len(files)
