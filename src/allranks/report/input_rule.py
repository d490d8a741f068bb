"""The rule for which files in a folder ``allranks report`` reads; it guesses nothing.

1. A folder with a ``run.json`` of allranks, or with attempts at jobs in ``cells/``, at any depth, is a run or a part of
   one, and its journals are read. A damaged ``run.json`` counts as one of allranks.
2. Without such a folder, each file that matches ``--ranks-xml`` is the XML of one rank. The default is
   ``{cell}/{suite}/rank-{rank}.xml``, or ``rank-{rank}.xml`` if there are such files in the folder itself.
3. The number of ranks comes from ``allranks.world_size`` in the XML, the id of the cell, or ``--world-size``. It is an
   error if none of them states it, if two of them differ, or if a rank has no file, or two.
4. Any other XML file, archive, record of a job, broken link or link to a folder elsewhere is an error, unless
   ``--ignore`` matches.
5. All other files, and the reports that allranks wrote next to or above the results, are ignored. So are files that
   tests left in the folder of an attempt: of its XML, only ``rank-N.xml`` has results.
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


class RankPath(NamedTuple):
    """What the path of a rank's XML states; cell and suite are empty if the pattern does not have them."""

    cell: str
    suite: str
    rank: int


class RankPattern:
    """A pattern of paths, in which ``{cell}``, ``{suite}`` and ``{rank}`` each match a part of one name.

    Raises:
        UsageError: The pattern is not valid.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        path = PurePosixPath(text)
        pieces = _PLACEHOLDER.split(str(path))
        names = pieces[1::2]
        unknown = next((name for name in names if name not in _FORMS), "")
        if unknown:
            raise _invalid(text, f"{unknown} is not a placeholder: use {', '.join(_FORMS)}.")
        if "{rank}" not in names or len(set(names)) < len(names):
            raise _invalid(text, "It needs {rank}, and may have each placeholder once.")
        if "*" in text or "?" in text:
            raise _invalid(
                text, "It has * or ?, which only --ignore accepts: {cell} and {suite} match a part of a name."
            )
        if path.is_absolute() or ".." in path.parts:
            raise _invalid(text, "It leads out of the merged folder.")
        if path.suffix.lower() != ".xml":
            raise _invalid(text, "It does not end in .xml.")
        self._longest, self._shortest = (re.compile("".join(_as_regex(pieces, quantifier))) for quantifier in ("", "?"))

    def match(self, path: PurePath) -> RankPath | None:
        """What a path states; None if it does not match, or if it matches in two ways."""
        found = self._longest.fullmatch(path.as_posix())
        if found is None or self.is_ambiguous(path):
            return None
        parts = found.groupdict()
        return RankPath(parts.get("cell", ""), parts.get("suite", ""), int(parts["rank"]))

    def is_ambiguous(self, path: PurePath) -> bool:
        """True if a path matches in two ways."""
        found, other = (form.fullmatch(path.as_posix()) for form in (self._longest, self._shortest))
        return found is not None and other is not None and found.groups() != other.groups()


def _as_regex(pieces: Sequence[str], quantifier: str) -> Iterator[str]:
    """The parts of a regular expression; with the quantifier ``?``, each placeholder matches as little as possible."""
    for piece in pieces:
        yield f"(?P<{piece[1:-1]}>{_FORMS[piece]}{quantifier})" if piece in _FORMS else re.escape(piece)


def _invalid(pattern: str, why: str) -> UsageError:
    remedy = "Give the path of the XML relative to the folder, such as '{cell}/{suite}/rank-{rank}.xml'."
    return UsageError(f"--ranks-xml {pattern!r} is not valid.", why=why, remedy=remedy)


JOBS: Final = RankPattern("{cell}/{suite}/rank-{rank}.xml")
"""The default pattern."""

ONE_JOB: Final = RankPattern("rank-{rank}.xml")
"""The default pattern for a folder that has such files itself, and the names of rank XML in an attempt's folder."""


@dataclass(frozen=True, kw_only=True)
class InputRule:
    """The options for the input of a merge."""

    pattern: RankPattern | None = None  # of the XML of ranks; None for the default
    world_size: int | None = None  # the number of ranks of each job of rank XML; None if another source states it
    ignore: tuple[str, ...] = ()  # patterns of relative paths; ``*`` also matches ``/``
    only: tuple[Path, ...] = ()  # the resolved folders to read; empty for the whole merged folder

    def reads(self, folder: Path) -> bool:
        """True if a resolved folder is to be read."""
        return not self.only or any(folder.is_relative_to(path) for path in self.only)

    def ignores(self, path: PurePath) -> bool:
        """True if a pattern matches a relative path or a folder above it."""
        return any(_matches(path, pattern) for pattern in self.ignore)

    def useless(self, paths: Collection[PurePath]) -> list[str]:
        """The patterns to ignore that match none of these relative paths."""
        return [pattern for pattern in self.ignore if not any(_matches(path, pattern) for path in paths)]


def _matches(path: PurePath, pattern: str) -> bool:
    """True if a pattern, which may begin with ``./`` or ``**/``, matches a relative path or a folder above it."""
    plain = PurePosixPath(pattern).as_posix()
    forms = {plain, plain.removeprefix("**/")}
    return any(fnmatchcase(parent.as_posix(), form) for parent in (path, *path.parents[:-1]) for form in forms)


DEFAULT_RULE: Final = InputRule()


def may_have_results(name: str) -> bool:
    """True if a file of this name could have results: XML, an archive, a compressed file, or a record of a job."""
    return name in {JOURNAL, RECORD} or _XML_OR_ARCHIVE.fullmatch(name) is not None


def world_size_of(cell: str) -> int | None:
    """The number of ranks in a cell's id; None for any other text."""
    match = _CELL_ID.fullmatch(cell)
    size = int(match[1]) if match else 0
    return size if 0 < size <= MOST_RANKS else None
