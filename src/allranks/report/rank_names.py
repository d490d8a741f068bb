"""Which rank and which world size the names of files and of their folders state."""

import re
from itertools import islice
from pathlib import Path
from typing import Final

from allranks.protocol.records import MOST_RANKS

_RANK_TOKEN: Final = re.compile(r"(?:rank|(?<![a-z])R(?:ank|ANK))[-_.]?([0-9]++)(?![A-Z])")  # not PageRank2, Rank2Test
_OTHER_RANK: Final = re.compile(r"(?:local|node|group|role)[-_.]?rank[-_.]?[0-9]+", re.IGNORECASE)  # torchrun's
_CELL_ID: Final = re.compile(r"\w+-w([0-9]{1,5})-g[0-9]+-[a-z]+(-n[0-9]+)?(-t[\w.+]+)?")
_RANK_FOLDER: Final = re.compile(r"(?:^|[-_.])rank[-_.]?([0-9]+)(?:[-_.]?of[-_.]?[0-9]+)?$", re.IGNORECASE)
_OF_RANKS: Final = re.compile(r".*rank[-_.]?[0-9]+[-_.]?of[-_.]?([0-9]{1,5})(?![0-9]).*", re.IGNORECASE)
_TIME: Final = re.compile(r"-[0-9]{14}$")


def names_a_rank(path: Path) -> bool:
    """True if a file's name alone states a rank."""
    return bool(_RANK_TOKEN.search(path.stem))


def rank_of(path: Path) -> int | None:
    """The rank by a file's name alone, or by that of its folder."""
    if above := rank_folder(path):
        tokens = _RANK_FOLDER.findall(above.name)
    else:
        tokens = _RANK_TOKEN.findall(_OTHER_RANK.sub("", path.stem)) or _RANK_TOKEN.findall(path.stem)
    return int(tokens[-1]) if tokens else None


def rank_folder(path: Path) -> Path | None:
    """The folder of a rank that has a file, or has its folder or the folder above that; None for none."""
    if names_a_rank(path):
        return None
    return next((each for each in islice(path.parents, 3) if _is_of_rank(each)), None)


def _is_of_rank(folder: Path) -> bool:
    """True for ``rank-1``, and for ``logs-rank-1`` beside ``logs-rank-0``: ``lora-rank-8`` is of no rank."""
    found = _RANK_FOLDER.search(folder.name)
    if not found or not found.start():
        return found is not None
    zeroth = f"{folder.name[: found.start(1)]}{'0' * len(found[1])}{folder.name[found.end(1) :]}"
    return folder.with_name(zeroth).is_dir()


def around(folder: Path) -> Path:
    """The place that the folders of ranks have in common: ``logs`` for ``logs-rank-1``, that above for ``rank-1``."""
    return folder.parent / _RANK_FOLDER.split(folder.name)[0]


def world_size_of(name: str) -> int | None:
    """The world size in a name, if it is the id of a cell, or as in ``rank-0-of-4.xml``."""
    match = _CELL_ID.fullmatch(name) or _OF_RANKS.fullmatch(name)
    size = int(match[1]) if match else 0
    return size if 0 < size <= MOST_RANKS else None


def timeless(name: str) -> str:
    """A name without the time that xmlrunner puts to its end, which is another one in each run, and on each rank."""
    return _TIME.sub("", name)
