"""Reads files, folders and JSON of unknown origin, without blocking and with checked types and numbers."""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, BinaryIO, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from allranks.protocol.xml_text import readable

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


def other_schema(found: object, own: int) -> str:
    """The description of an unknown schema in messages."""
    return f"of schema {found!r:.20}, but this version of allranks reads schema {own}"


def special(path: Path) -> str:
    """The kind of a path that is not a regular file, such as ``a FIFO``; empty for a regular or absent file."""
    try:
        return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "")
    except OSError:
        return ""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; links are followed.

    Anything else is an OSError: opening a FIFO would wait for its writer, and opening a device may change its state.
    """
    _reject_special(path.stat())
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _reject_special(os.fstat(descriptor))  # it may have been replaced
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _reject_special(status: os.stat_result) -> None:
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
    import hashlib  # noqa: PLC0415 - OpenSSL takes 4 MB, and few reports need it

    try:
        with open_regular(path) as file:
            hasher = hashlib.sha256()
            while chunk := file.read(1 << 20):
                hasher.update(chunk)
            return hasher.hexdigest()
    except OSError:
        return ""


def leads_out(root: Path, path: Path) -> bool:
    """True if a path, with links resolved, is outside ``root``; unlike ``Path.resolve``, it accepts link loops."""
    return not Path(os.path.realpath(path)).is_relative_to(root)


def listing(folder: Path) -> list[Path]:
    """The content of a folder, by name; ``Path.glob`` would silently find nothing in one that cannot be read."""
    return sorted(folder.iterdir())


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Each folder from ``root`` on with the names of its folders and of its other entries; links are not followed.

    Unlike ``os.walk``, this does not recurse (a thousand nested folders are too many for Python 3.11), and it raises an
    error for folders that cannot be read, so that their content does not go missing unnoticed. The caller may remove
    folders from the list to skip them.
    """
    left = [root]
    while left:
        path = left.pop()
        with os.scandir(path) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        folders = [name for name, is_folder in found if is_folder]
        yield path, folders, [name for name, is_folder in found if not is_folder]
        left.extend(path / name for name in reversed(folders))


def remove_existing(path: Path) -> Path:
    """Remove any file at a path and return the path: writing to a FIFO would block, and a link could lead elsewhere."""
    path.unlink(missing_ok=True)
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a file of the report, replacing an existing one atomically."""
    draft = remove_existing(path.with_name(f".{path.name}.unfinished"))
    try:
        draft.write_text(text, encoding="utf-8", newline="\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


LAST_MOMENT: Final = 253_402_300_799.0
"""The end of the year 9999, the last that ``datetime`` supports, in seconds since the epoch."""

_SHOWN: Final = 60

T = TypeVar("T")
_Read = Callable[[Any, str], Any]


def parsed(kind: type[T], value: object, path: str = "") -> T:
    """Build a frozen dataclass from parsed JSON; null is like an absent field, and unknown fields are ignored.

    Strings are made readable, integers are counts, and other numbers are seconds since the epoch, unless an annotation
    states another conversion (``Annotated[str, xml_id]``) or other bounds (``Annotated[int, range(9)]``). A field
    without a default is required. The ValueError for an invalid field names its ``path``, such as ``jobs.3``.
    """
    members = _members(value, path or "the document")
    key: Any = kind
    fields_read = {}
    for name, read, is_required in _fields(key):
        if (member := members.get(name)) is not None or is_required:
            fields_read[name] = read(member, f"{path}.{name}" if path else name)
    return kind(**fields_read)


@cache
def _fields(kind: Any) -> list[tuple[str, _Read, bool]]:  # noqa: ANN401 - a dataclass, which no type expresses
    """The name and the reader of each field, and whether the field is required."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        (field.name, _reader(hints[field.name]), field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
    ]


@cache
def _reader(hint: Any) -> _Read:  # noqa: ANN401 - any annotation
    """A function that checks and converts a value, given its path."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, detail = arguments
        return (lambda value, path: detail(_text(value, path))) if base is str else partial(_whole, numbers=detail)
    if origin in {Union, UnionType}:
        reads = [_reader(argument) for argument in arguments if argument is not NoneType]
        # In a union with str, str is the first type.
        return lambda value, path: reads[0 if isinstance(value, str) else -1](value, path)
    if origin is Literal:
        return partial(_choice, choices=arguments)
    if origin is tuple:
        read = _reader(arguments[0])
        return lambda value, path: tuple(read(item, f"{path}.{n}") for n, item in enumerate(_items(value, path)))
    if origin is Mapping:
        name, read = (_reader(argument) for argument in arguments)
        return lambda value, path: {
            name(key, path): read(member, f"{path}.{key}") for key, member in _members(value, path).items()
        }
    return _SIMPLE.get(hint) or partial(parsed, hint)


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, value, "a string")
    return value


def _choice(value: object, path: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise _wrong(path, value, " or ".join(map(repr, choices)))
    return str(value)


def _items(value: object, path: str) -> list[object]:
    if not isinstance(value, list):
        raise _wrong(path, value, "a list")
    return value


def _members(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong(path, value, "an object")
    return value


def _whole(value: object, path: str, numbers: range = range(10**9 + 1)) -> int:
    """A whole number; the default range is plausible for counts of tests, jobs or attempts."""
    if not isinstance(value, int) or isinstance(value, bool) or value not in numbers:
        raise _wrong(path, value, f"a whole number from {numbers.start} to {numbers.stop - 1}")
    return value


def _moment(value: object, path: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LAST_MOMENT:
        raise _wrong(path, value, "a number of seconds since 1970")
    return float(value)


_SIMPLE: Final[Mapping[Any, _Read]] = {
    str: lambda value, path: readable(_text(value, path)),
    int: _whole,
    float: _moment,
    Any: lambda value, _: value,
}


def _wrong(path: str, value: object, expected: str) -> ValueError:
    shown = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return ValueError(f"{path} is {shown[:_SHOWN]}, not {expected}")


_DIGITS: Final = 18
_MOST: Final = 1e15
MOST_SECONDS: Final = 1e9
"""The longest duration of a test in seconds, 31 years: larger numbers, such as 1e308, would add up to infinity."""


def whole_number(value: str | None) -> int | None:
    """Parse a whole number; None for other strings, and for implausible numbers of more than 18 digits."""
    digits = (value or "").lstrip("0") or (value or "")[-1:]
    return int(digits) if len(digits) <= _DIGITS and re.fullmatch("[0-9]+", digits) else None


def number(value: str | None) -> float | None:
    """Parse a number; None for other strings, and for numbers too large to be a time."""
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if abs(number) <= _MOST else None


def duration(seconds: float) -> float:
    """The duration, or 0 if it is implausible."""
    return seconds if 0 < seconds <= MOST_SECONDS else 0.0
