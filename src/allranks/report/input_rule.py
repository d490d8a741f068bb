"""Which files of a folder ``allranks report`` reads, by one rule that guesses nothing.

1. A folder with a ``run.json`` of allranks, or with attempts at jobs in ``cells/``, at any depth, is a run or a part of
   one, and its journals are read. A ``run.json`` that is damaged may be one of allranks.
2. Without such a folder, each file that matches ``--ranks-xml`` is the XML of one rank. The default is
   ``{cell}/{suite}/rank-{rank}.xml``, or ``rank-{rank}.xml`` if there are such files in the folder itself.
3. The number of ranks comes from ``allranks.world_size`` in the XML, the id of the cell, or ``--world-size``. If none
   of them states it, or two of them differ, that is an error. So is a rank that has no file, or two.
4. Any other XML file, archive, record of a job, broken link or link to a folder elsewhere is an error, unless
   ``--ignore`` matches.
5. All other files, and the reports that allranks wrote beside or above the results, are neither read nor an error. Nor
   is what tests left in the folder of an attempt: of its XML, only ``rank-N.xml`` has results.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath, PurePosixPath
from types import MappingProxyType
from typing import Final, NamedTuple

from allranks.errors import UsageError
from allranks.protocol.records import JOURNAL, MOST_RANKS

RECORD: Final = "job.json"
"""The name of an attempt's record."""

_PLACEHOLDER: Final = re.compile(r"(\{[^{}]*\})")
_FORMS: Final = MappingProxyType({"{cell}": "[^/]+", "{suite}": "[^/]+", "{rank}": "[0-9]+"})
_CELL_ID: Final = re.compile(r"\w+-w([0-9]{1,5})-g[0-9]+-[a-z]+(-n[0-9]+)?(-t[\w.+]+)?")
_XML_OR_ARCHIVE: Final = re.compile(
    r".*\.(xml|zip|jar|tar|tgz|tbz2?|txz|tzst|gz|z|bz2|xz|lzma|lz|br|zst|lz4|7z|rar|cab)", re.IGNORECASE | re.DOTALL
)


class RankPlace(NamedTuple):
    """What the path of a rank's XML states; cell and suite are empty if the pattern does not have them."""

    cell: str
    suite: str
    rank: int


class RankPattern:
    """A pattern of paths, in which ``{cell}``, ``{suite}`` and ``{rank}`` stand for a part of one name each.

    All other characters stand for themselves. One that cannot be used is a UsageError.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        path = PurePosixPath(text)
        pieces = _PLACEHOLDER.split(str(path))
        names = pieces[1::2]
        unknown = next((name for name in names if name not in _FORMS), "")
        if unknown:
            raise _refused(text, f"It has {unknown}: the placeholders are {', '.join(_FORMS)}.")
        if "{rank}" not in names or len(set(names)) < len(names):
            raise _refused(text, "It needs {rank}, and may have each placeholder once.")
        if "*" in text or "?" in text:
            raise _refused(text, "It has * or ?, which are for --ignore: {cell} and {suite} are any part of one name.")
        if path.is_absolute() or ".." in path.parts:
            raise _refused(text, "It leads out of the folder that is merged.")
        if path.suffix.lower() != ".xml":
            raise _refused(text, "It does not end in .xml.")
        self._longest, self._shortest = (re.compile("".join(_as_regex(pieces, how))) for how in ("", "?"))

    def place(self, path: PurePath) -> RankPlace | None:
        """The place that a path states; None if it does not match, or if it matches in two ways."""
        found = self._longest.fullmatch(path.as_posix())
        if found is None or self.is_ambiguous(path):
            return None
        said = found.groupdict()
        return RankPlace(said.get("cell", ""), said.get("suite", ""), int(said["rank"]))

    def is_ambiguous(self, path: PurePath) -> bool:
        """True if a path matches in two ways."""
        found, other = (form.fullmatch(path.as_posix()) for form in (self._longest, self._shortest))
        return found is not None and other is not None and found.groups() != other.groups()


def _as_regex(pieces: Sequence[str], how: str) -> Iterator[str]:
    """The parts of a regular expression; if ``how`` is ``?``, each placeholder takes as few characters as possible."""
    for piece in pieces:
        yield f"(?P<{piece[1:-1]}>{_FORMS[piece]}{how})" if piece in _FORMS else re.escape(piece)


def _refused(pattern: str, why: str) -> UsageError:
    remedy = "Write the path of the XML below the folder, such as '{cell}/{suite}/rank-{rank}.xml'."
    return UsageError(f"--ranks-xml {pattern!r} cannot be used.", why=why, remedy=remedy)


JOBS: Final = RankPattern("{cell}/{suite}/rank-{rank}.xml")
"""The default pattern."""

ONE_JOB: Final = RankPattern("rank-{rank}.xml")
"""The default pattern for a folder that has such files itself, and the names of rank XML in an attempt's folder."""


@dataclass(frozen=True, kw_only=True)
class InputRule:
    """What a merge is told of its input, beside the folder."""

    pattern: RankPattern | None = None  # of the XML of ranks; None for the default
    world_size: int | None = None  # the number of ranks of each job of rank XML; None if it is stated elsewhere
    ignore: tuple[str, ...] = ()  # patterns of relative paths that need not be read; ``*`` matches ``/``, too
    only: tuple[Path, ...] = ()  # the folders to read, with resolved paths; empty for all that the merged folder has

    def reads(self, folder: Path) -> bool:
        """True if a folder, given as a resolved path, is among those to read, or below one."""
        return not self.only or any(folder.is_relative_to(each) for each in self.only)

    def ignores(self, path: PurePath) -> bool:
        """True if a relative path, or a folder above it, matches."""
        return any(_matches(path, pattern) for pattern in self.ignore)

    def useless(self, paths: Collection[PurePath]) -> list[str]:
        """The patterns to ignore that match none of these relative paths."""
        return [pattern for pattern in self.ignore if not any(_matches(path, pattern) for path in paths)]


def _matches(path: PurePath, pattern: str) -> bool:
    """True if a pattern matches a relative path or a folder above it; ``./`` and ``**/`` may lead to this folder."""
    plain = PurePosixPath(pattern).as_posix()
    forms = {plain, plain.removeprefix("**/")}
    return any(fnmatchcase(place.as_posix(), form) for place in (path, *path.parents[:-1]) for form in forms)


USUAL: Final = InputRule()
"""The rule without any option."""


def may_have_results(name: str) -> bool:
    """True if a file of this name could have results: XML, an archive, a compressed file, or a record of a job."""
    return name in {JOURNAL, RECORD} or _XML_OR_ARCHIVE.fullmatch(name) is not None


def world_size_of(cell: str) -> int | None:
    """The number of ranks that the id of a cell states; None if it is no such id."""
    match = _CELL_ID.fullmatch(cell)
    size = int(match[1]) if match else 0
    return size if 0 < size <= MOST_RANKS else None
