"""Reading the files of jobs: names and texts that ranks have in common are in memory once."""

import pytest

from allranks.report.folder import ResultFile
from allranks.report.judge.judging import read_ranks
from allranks.report.rank_xml import RankReader


def document(tests):
    return f"<testsuites><testsuite>{''.join(tests)}</testsuite></testsuites>"


@pytest.fixture
def files(tmp_path):
    """Ranks with the same tests, one with other tests, one broken and one that is absent."""
    same = [f'<testcase classname="t" name="x{number}" time="0.5"/>' for number in range(50)]
    same.append('<testcase classname="t" name="bad" time="0.5"><failure message="m">text</failure></testcase>')
    contents = [document(same)] * 4 + [document(same[:7]), document(same)[:-400], document(same)]
    for rank, content in enumerate(contents):
        (tmp_path / f"rank-{rank}.xml").write_text(content)
    return [ResultFile(tmp_path / f"rank-{rank}.xml", rank) for rank in range(len(contents) + 1)]


def told(files):
    return [(file.rank, file.results, file.problem) for file in files]


def test_jobs_are_read_as_their_files_alone_are(files):
    jobs = [files[:3], [], files[3:6], files[:1], files[6:]]
    alone = [[told(read_ranks([file]))[0] for file in job] for job in jobs]
    reader = RankReader()
    assert [told(read_ranks(job, reader)) for job in jobs] == alone


def test_ranks_that_ran_the_same_tests_share_their_names(files):
    first, second, *_ = read_ranks(files)
    assert first.keys is second.keys


def test_ranks_that_say_the_same_share_their_texts(files):
    first, *others = read_ranks(files[:4])
    for other in others:
        assert other.result(50).text is first.result(50).text
