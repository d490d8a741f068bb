"""Reads files, folders and JSON of unknown origin: bounded, never blocking, typed."""

import errno
import hashlib
import os
import re
import stat
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from allranks.xml_text import readable

_KINDS: Final = MappingProxyType(
    {
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFDIR: "a folder",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
)


def special(path: Path) -> str:
    """What a path is if not a regular file, such as ``a FIFO``; empty for a regular file, or if nothing is there."""
    try:
        return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "")
    except OSError:
        return ""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; links are followed.

    Raises:
        OSError: It cannot be opened, or is something else. To open a FIFO would wait for its writer, and to open a
            device may move it.
    """
    _refuse_special(path.stat())
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _refuse_special(os.fstat(descriptor))  # it may have been replaced
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_special(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file")


def head(path: Path, size: int) -> bytes:
    """The first bytes of a regular file; none where it cannot be read, or is something else."""
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError:
        return b""


def digest(path: Path) -> str:
    """A digest of a regular file; empty where it cannot be read, or is something else."""
    try:
        with open_regular(path) as file:
            hasher = hashlib.sha256()
            while piece := file.read(1 << 20):
                hasher.update(piece)
            return hasher.hexdigest()
    except OSError:
        return ""


def leads_out(root: Path, path: Path) -> bool:
    """True if a path, its links resolved, is outside ``root``; unlike ``Path.resolve``, a loop of links is no error."""
    return not Path(os.path.realpath(path)).is_relative_to(root)


def listing(folder: Path) -> list[Path]:
    """What is in a folder, by name.

    Raises:
        OSError: It cannot be read. ``Path.glob`` would find nothing in it, without a word.
    """
    return sorted(folder.iterdir())


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Each folder below ``root`` with the names of its folders and of all else in it; no link is followed.

    Like ``os.walk`` from the top down, which up to Python 3.11 recurses, and fails a thousand folders deep. The caller
    may remove folders from the list that it does not want.

    Raises:
        OSError: A folder cannot be read: what is in it might be missed by nobody.
    """
    left = [root]
    while left:
        path = left.pop()
        with os.scandir(path) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        folders = [name for name, is_folder in found if is_folder]
        yield path, folders, [name for name, is_folder in found if not is_folder]
        left.extend(path / name for name in reversed(folders))


def fresh(path: Path) -> Path:
    """The same path, with nothing there: a FIFO would block its writer, and a link lead the writer elsewhere.

    Raises:
        OSError: What is there cannot be removed.
    """
    path.unlink(missing_ok=True)
    return path


MOST: Final = 10**9
"""What no count of tests, jobs or attempts reaches."""

LAST_MOMENT: Final = 253_402_300_799.0
"""The end of the year 9999, the last that ``datetime`` knows, in seconds since the epoch."""

_SHOWN: Final = 60


class Fields:
    """A JSON object, by its fields. A field that is absent is like one that is null.

    Args:
        value: What JSON has in its place.
        path: How to get there from the whole document: ``policy``, ``jobs.3``; empty for the document.

    Raises:
        ValueError: It is no object. All methods raise it, too, for fields of another type than they are asked for.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise _wrong(path or "the document", value, "an object")
        self._value: Mapping[str, object] = value
        self._path = path

    def __iter__(self) -> Iterator[str]:
        """The names of its fields."""
        return iter(self._value)

    @property
    def raw(self) -> Mapping[str, object]:
        """The object as it is."""
        return self._value

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """True if the field is there, and not null."""
        return self._value.get(name) is not None

    def _wrong(self, name: str, wanted: str) -> ValueError:
        return _wrong(self._at(name), self._value.get(name), wanted)

    def text(self, name: str, default: str | None = "") -> str:
        """A text, made readable; without a default, one that has to be there."""
        value = self._value.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return readable(value)

    def choice(self, name: str, choices: Collection[str]) -> str:
        """One of some texts; empty where there is none."""
        value = self.text(name)
        if value and value not in choices:
            raise self._wrong(name, " or ".join(map(repr, choices)))
        return value

    def raw_texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, each as it is."""
        values = self.items(name)
        for value in values:
            if not isinstance(value, str):
                raise self._wrong(name, "a list of texts")
        return tuple(str(value) for value in values)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, each made readable."""
        return tuple(map(readable, self.raw_texts(name)))

    def items(self, name: str) -> list[object]:
        """A list of anything; empty where there is none."""
        value = self._value.get(name)
        value = [] if value is None else value
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def whole(self, name: str, default: int | None = 0, *, least: int = 0, most: int = MOST) -> int:
        """A whole number from ``least`` to ``most``; without a default, one that has to be there."""
        value = self._value.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(name, f"a whole number from {least} to {most}")
        return value

    def moment(self, name: str) -> float | None:
        """Seconds since the epoch."""
        value = self._value.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LAST_MOMENT:
            raise self._wrong(name, "a number of seconds since 1970")
        return float(value)

    def scalar(self, name: str) -> str | int:
        """A text or a whole number."""
        value = self._value.get(name)
        return self.text(name) if isinstance(value, str) else self.whole(name, None)

    def fields(self, name: str) -> "Fields":
        """An object; an empty one where there is none."""
        value = self._value.get(name)
        return Fields({} if value is None else value, self._at(name))

    def objects(self, name: str) -> Iterator["Fields"]:
        """A list of objects; nothing where there is none."""
        return (Fields(value, f"{self._at(name)}.{place}") for place, value in enumerate(self.items(name)))


def _wrong(path: str, value: object, wanted: str) -> ValueError:
    shown = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return ValueError(f"{path} is {shown[:_SHOWN]}, not {wanted}")


_DIGITS: Final = 18
_MOST: Final = 1e15
_MOST_SECONDS: Final = 1e9
"""Seconds that a test may take, 31 years: a few of 1e308, which are numbers, too, add up to none."""


def whole_number(value: str | None) -> int | None:
    """A whole number; of one that is beyond counting, its first digits are beyond counting, too."""
    return int(value[:_DIGITS]) if value and re.fullmatch("[0-9]+", value) else None


def number(value: str | None) -> float | None:
    """A number that a clock may show; commas as thousands separators, which some runners write, are left out."""
    try:
        number = float((value or "").replace(",", ""))
    except ValueError:
        return None
    return number if abs(number) <= _MOST else None


def duration(seconds: float) -> float:
    """How long something took: nothing where no clock can have said so."""
    return seconds if 0 < seconds <= _MOST_SECONDS else 0.0


def durations(times: Sequence[str | float | None]) -> "array[float]":
    """The durations that testcases state: 0 where one states none, or none that can be."""
    with suppress(TypeError, ValueError):  # of nothing, and of words
        seconds = array("d", map(float, times))  # type: ignore[arg-type]
        if min(seconds, default=0.0) >= 0 and sum(seconds) <= _MOST_SECONDS:  # false where one is no number
            return seconds
    return array("d", (duration((number(time) if isinstance(time, str) else time) or 0.0) for time in times))
