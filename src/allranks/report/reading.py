"""Reads the files of ranks, job by job."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from allranks.report.columns import RankFile
from allranks.report.rank_xml import RankReader


def read_ranks(paths: Sequence[Path]) -> list[RankFile]:
    """The results in the files of one job, in the order of the files."""
    return next(read_jobs([paths]))


def read_jobs(jobs: Sequence[Sequence[Path]]) -> Iterator[list[RankFile]]:
    """The results in the files of each job, in the order of the jobs.

    Args:
        jobs: The files of each.
    """
    reader = RankReader()
    for paths in jobs:
        texts: dict[str, str] = {}
        yield [reader.read(path, texts) for path in paths]
