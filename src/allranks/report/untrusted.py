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
    """The kind of a path that is not a regular file, such as ``a FIFO``; empty for a regular or absent file."""
    try:
        return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "")
    except OSError:
        return ""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; links are followed.

    Raises:
        OSError: It cannot be opened, or is not a regular file. Opening a FIFO would wait for its writer, and opening
            a device may change its state.
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
    """The first bytes of a regular file; empty if it cannot be read or is not one."""
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError:
        return b""


def digest(path: Path) -> str:
    """A digest of a regular file; empty if it cannot be read or is not one."""
    try:
        with open_regular(path) as file:
            hasher = hashlib.sha256()
            while piece := file.read(1 << 20):
                hasher.update(piece)
            return hasher.hexdigest()
    except OSError:
        return ""


def leads_out(root: Path, path: Path) -> bool:
    """True if a path, with links resolved, is outside ``root``; unlike ``Path.resolve``, it accepts link loops."""
    return not Path(os.path.realpath(path)).is_relative_to(root)


def listing(folder: Path) -> list[Path]:
    """The content of a folder, by name.

    Raises:
        OSError: It cannot be read; ``Path.glob`` would silently find nothing in it.
    """
    return sorted(folder.iterdir())


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Each folder below ``root`` with the names of its folders and of its other entries; links are not followed.

    Like a top-down ``os.walk``, which up to Python 3.11 recurses and fails a thousand folders deep. The caller
    may remove folders from the list to skip them.

    Raises:
        OSError: A folder cannot be read: its content could go missing unnoticed.
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
    """Remove any file at a path and return the path: a FIFO would block its writer, and a link could lead elsewhere.

    Raises:
        OSError: The existing file cannot be removed.
    """
    path.unlink(missing_ok=True)
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a file of the report, replacing an existing one atomically.

    Raises:
        OSError: It cannot be written.
    """
    draft = fresh(path.with_name(f".{path.name}.unfinished"))
    try:
        draft.write_text(text, encoding="utf-8", newline="\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


MOST: Final = 10**9
"""A bound that no count of tests, jobs or attempts reaches."""

LAST_MOMENT: Final = 253_402_300_799.0
"""The end of the year 9999, the last that ``datetime`` supports, in seconds since the epoch."""

_SHOWN: Final = 60


class Fields:
    """A JSON object with typed access to its fields. An absent field is like one that is null.

    Args:
        value: The parsed JSON value.
        path: Its path in the document: ``policy``, ``jobs.3``; empty for the document itself.

    Raises:
        ValueError: The value is not an object. All methods also raise it for fields of the wrong type.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise _wrong(path or "the document", value, "an object")
        self._value: Mapping[str, object] = value
        self._path = path

    def __iter__(self) -> Iterator[str]:
        """The names of the fields."""
        return iter(self._value)

    @property
    def raw(self) -> Mapping[str, object]:
        """The unchecked object."""
        return self._value

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """True if the field is present and not null."""
        return self._value.get(name) is not None

    def _wrong(self, name: str, wanted: str) -> ValueError:
        return _wrong(self._at(name), self._value.get(name), wanted)

    def text(self, name: str, default: str | None = "") -> str:
        """A text, made readable; required if there is no default."""
        value = self._value.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return readable(value)

    def choice(self, name: str, choices: Collection[str]) -> str:
        """One of the given texts; empty if absent."""
        value = self.text(name)
        if value and value not in choices:
            raise self._wrong(name, " or ".join(map(repr, choices)))
        return value

    def raw_texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, unchanged."""
        values = self.items(name)
        for value in values:
            if not isinstance(value, str):
                raise self._wrong(name, "a list of texts")
        return tuple(str(value) for value in values)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, each made readable."""
        return tuple(map(readable, self.raw_texts(name)))

    def items(self, name: str) -> list[object]:
        """A list of anything; empty if absent."""
        value = self._value.get(name)
        value = [] if value is None else value
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def whole(self, name: str, default: int | None = 0, *, least: int = 0, most: int = MOST) -> int:
        """A whole number from ``least`` to ``most``; required if there is no default."""
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
        """An object; an empty one if absent."""
        value = self._value.get(name)
        return Fields({} if value is None else value, self._at(name))

    def objects(self, name: str) -> Iterator["Fields"]:
        """A list of objects; empty if absent."""
        return (Fields(value, f"{self._at(name)}.{place}") for place, value in enumerate(self.items(name)))


def _wrong(path: str, value: object, wanted: str) -> ValueError:
    shown = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return ValueError(f"{path} is {shown[:_SHOWN]}, not {wanted}")


_DIGITS: Final = 18
_MOST: Final = 1e15
_MOST_SECONDS: Final = 1e9
"""The longest duration of a test in seconds, 31 years: larger numbers, such as 1e308, would add up to infinity."""


def whole_number(value: str | None) -> int | None:
    """Parse a whole number; of a very long one, only the first digits, which already exceed any valid count."""
    return int(value[:_DIGITS]) if value and re.fullmatch("[0-9]+", value) else None


def number(value: str | None) -> float | None:
    """Parse a number that a clock may show, ignoring thousands separators (commas), which some runners write."""
    try:
        number = float((value or "").replace(",", ""))
    except ValueError:
        return None
    return number if abs(number) <= _MOST else None


def duration(seconds: float) -> float:
    """The duration, or 0 for a value that no clock can have measured."""
    return seconds if 0 < seconds <= _MOST_SECONDS else 0.0


def durations(times: Sequence[str | float | None]) -> "array[float]":
    """The durations of testcases: 0 if one is absent or implausible."""
    with suppress(TypeError, ValueError):  # for None, and for text that is not a number
        seconds = array("d", map(float, times))  # type: ignore[arg-type]
        if min(seconds, default=0.0) >= 0 and sum(seconds) <= _MOST_SECONDS:  # false if one is NaN
            return seconds
    return array("d", (duration((number(time) if isinstance(time, str) else time) or 0.0) for time in times))
