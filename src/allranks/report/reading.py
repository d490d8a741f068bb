"""Reads what ranks left, job by job: journals and the XML of ranks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from allranks.records import JOURNAL
from allranks.report.columns import RankFile
from allranks.report.journal import read_journal
from allranks.report.rank_xml import RankReader


def read_ranks(paths: Sequence[Path]) -> list[RankFile]:
    """The results in the files of one job, in the order of the files."""
    return next(read_jobs([paths]))


def read_jobs(jobs: Sequence[Sequence[Path]]) -> Iterator[list[RankFile]]:
    """The results in the files of each job, in the order of the jobs: of all ranks in a journal, of one in any other.

    Args:
        jobs: The files of each.
    """
    reader = RankReader()
    for paths in jobs:
        texts: dict[str, str] = {}
        files: list[RankFile] = []
        for path in paths:
            files += read_journal(path, texts) if path.name == JOURNAL else [reader.read(path, texts)]
        yield files
