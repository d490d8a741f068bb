"""The files that ranks left, as far as the page may link to them: relative, below its own folder, of plain names."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from allranks.report.judged import JobFacts
from allranks.report.strip import numbers

_PLAIN: Final = re.compile(r"[A-Za-z0-9_@=+-][A-Za-z0-9_.@=+-]{0,200}")
"""What the name of a folder has to look like to become part of a link: no separator, no scheme, not ``..``."""

_OF_RANK: Final = re.compile(r"rank-(\d{1,6})\.(xml|log|stacks\.txt)", re.ASCII)


def folder_to_link(facts: JobFacts) -> str:
    """Where a job's files are; empty where that is not surely a relative path below the page's folder."""
    return facts.folder if all(map(_PLAIN.fullmatch, facts.folder.split("/"))) else ""


def files_of_ranks(root: Path, folder: str) -> Mapping[str, str]:
    """For each kind of file that ranks left in a folder below ``root``, which of them did: ``{"xml": "0-63"}``."""
    try:
        names = os.listdir(root / folder) if folder else []  # noqa: PTH208 - names are all that is needed of 200 files
    except OSError:
        return {}
    found: dict[str, list[int]] = {}
    for name in names:
        if match := _OF_RANK.fullmatch(name):
            found.setdefault(match[2], []).append(int(match[1]))
    return {kind: numbers(ranks).replace(" ", "") for kind, ranks in sorted(found.items())}
