"""Reading a job's files on several cores comes to the same as reading them one by one."""

import multiprocessing

import pytest

from allranks.report import reading
from allranks.report.reading import read_jobs, read_ranks


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


@pytest.fixture
def three_cores(monkeypatch):
    def use(errand):
        monkeypatch.setattr(reading, "WORTH_PROCESSES", 0)
        monkeypatch.setattr(reading, "_ERRAND", errand)
        monkeypatch.setattr(reading, "_cores", lambda: 3)

    return use


def told(files):
    return [(file.rank, file.results, file.problem) for file in files]


@pytest.mark.parametrize("errand", [0, 6000, 1 << 20])
def test_several_processes_read_what_one_reads(files, three_cores, errand):
    jobs = [files[:3], [], files[3:6], files[:1], files[6:]]
    one = [told(read) for read in read_jobs(jobs)]
    three_cores(errand)
    assert [told(read) for read in read_jobs(jobs)] == one


def test_who_stops_reading_leaves_no_process(files, three_cores):
    three_cores(0)
    read = read_jobs([[path] for path in files])
    next(read)
    assert multiprocessing.active_children()
    read.close()
    assert not multiprocessing.active_children()


def test_ranks_that_ran_the_same_tests_share_their_names(files):
    first, second, *_ = read_ranks(files)
    assert first.keys is second.keys


def test_small_files_are_read_without_a_process_more(files, monkeypatch):
    monkeypatch.setattr(reading, "ProcessPoolExecutor", lambda *_, **__: pytest.fail("a pool was made"))
    assert len(read_ranks(files)) == len(files)
