"""Folds the frames of pytest, pluggy and allranks in the text of tracebacks and stacks, and makes short excerpts.

It parses the styles of pytest (``path:line: in name`` with the source below it, ``path:line: Error`` with the source
above it), Python's own tracebacks with exception groups, and stack dumps (faulthandler, py-spy). Since tests can write
any text, nothing here raises, and the time is linear in the length of the text.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, groupby, islice, takewhile
from typing import Final, Literal

from allranks.protocol.xml_text import clipped, printable

_TOOLS: Final = re.compile(
    r"/_pytest/|-packages/(?:pluggy|pytest)/|\A<frozen "
    r"|/allranks/(?:agent|protocol|testing|plugins/\w+/agent)/"
)

_FRAME: Final = re.compile(
    r'(?P<margin>[ |]*)File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?:(?P<dump>,?) in (?P<name>.+))?'
)
_ENTRY: Final = re.compile(r"(?P<file>[^\s:].*?):(?P<line>\d{1,9}): (?:in (?P<name>.+)|[\w.]*)")
_MARKS: Final = re.compile(r"[ |]*(?:\+-[-+ \d]*)?")
"""The left edge of a line in an exception group."""

_NUMBER: Final = re.compile(r"[ |]*\+[-+]*- (\d+) -+")
"""The line above an exception of a group."""

_BOUNDARY: Final = re.compile(
    r"_ _ _|The above exception was |During handling of |(?:Exception Group )?Traceback \(most recent |"
    r"(?P<thread>(?:Current thread|Thread) 0x)"
)
OUTSIDE: Final = "Seen from outside by py-spy"
"""The line above py-spy's stacks of the same threads."""

_FUNCTION: Final = re.compile(r"\s*(?:async )?def (\w+)")

ERROR_MARK: Final = "E   "
"""The start of the lines of an exception, as in pytest."""


_PACKAGES: Final = re.compile(r"\A.*(?:-packages|/projects/[^/]+/site)/")
"""The folders of installed packages; the second one is that of the project in the cache of the process engine."""


def below_packages(file: str) -> str:
    """The path of a file below the folder of packages in which it is installed, if any."""
    return _PACKAGES.sub("", file)


def is_tool(file: str) -> bool:
    """Whether a source file belongs to pytest, pluggy or allranks; all reports use this filter."""
    return _TOOLS.search(file) is not None


@dataclass(frozen=True)
class TextFrame:
    """One frame of a traceback or of a stack."""

    file: str
    line: int
    name: str  # the function; empty if the text does not name it
    lines: Sequence[str]  # its lines in the text
    is_of_dump: bool = False  # from a stack dump: its callers are below it, and not above as in a traceback

    @property
    def source(self) -> str:
        """The line of code; empty if the text does not have it."""
        marked = [line for line in self.lines if line.startswith(">")]
        below = self.lines[1] if self.lines[1:] and not marked else ""
        return (marked[-1][1:] if marked else below).strip(" |")

    @property
    def margin(self) -> str:
        """The left edge of its first line."""
        found = _FRAME.match(self.lines[0])
        return found["margin"] if found else ""

    @property
    def values(self) -> list[str]:
        """The arguments of the function, which pytest shows above the source."""
        first = list(takewhile(bool, dropwhile(lambda line: not line, self.lines)))
        is_values = len(first) < len(self.lines) and " = " in first[0] and first[0][0] not in " >E@"
        return first if is_values and not _FUNCTION.match(first[0]) else []


_CHAIN: Final = re.compile("The above exception was |During handling of ")
_TRACEBACK: Final = re.compile(r"(?:Original )?Traceback \(most recent call last\):")
_CONTENT: Final = re.compile(r"[^\s=*#~+|:-]")
"""Any character that is not used to draw horizontal rules."""

_ONLY_TYPE: Final = re.compile(r"(?P<type>[\w.]+:)[\s=*#~+|-]*")
_MOST_PARTS: Final = 3


def headline(text: str) -> str:
    """The most informative line of an exception's text, which has the form ``Type: message``.

    This is the first line. If it has only the type or ends with a colon, the next lines with content are appended. If
    the message itself has a traceback, like that of a process that ``torch.multiprocessing`` started, the exception at
    its end is appended.
    """
    lines = [line for line in text.splitlines() if _CONTENT.search(line)]
    if lines and lines[0].lstrip().startswith('File "'):  # the location of a SyntaxError, above its type
        lines = [line for line in lines if not line.startswith(" ")]
    if not lines:
        return next((line.strip() for line in text.splitlines() if line.strip()), "")
    only_type = _ONLY_TYPE.fullmatch(lines[0].strip())
    parts, rest = [only_type["type"] if only_type else lines[0].strip()], iter(lines[1:])
    for line in rest:
        if _TRACEBACK.fullmatch(line.strip()):
            if parts[-1].endswith(":") or len(parts) == 1:
                parts = [f"{' '.join(parts).rstrip('.:')}:", *_last_error(rest)]
            break
        if not parts[-1].endswith(":") or len(parts) == _MOST_PARTS:
            break
        parts.append(line.strip(" -=*#"))
    return " ".join(parts).rstrip(":")


def _last_error(lines: Iterable[str]) -> Sequence[str]:
    """The first line of the last exception in a chain; `lines` begin below the first line of the first traceback."""
    found: list[str] = []
    is_chained = True
    for line in lines:
        if _TRACEBACK.fullmatch(line.strip()):
            if not is_chained:  # this traceback is from another process or thread
                break
            found = []
        elif not found and not line.startswith(" "):
            found, is_chained = [line], False
        is_chained = is_chained or bool(_CHAIN.match(line))
    return found


def line_kind(line: str) -> Literal["error", "source", "location", "other"]:
    """What a line of a traceback of pytest, or of an excerpt, shows; reports color it accordingly."""
    if _is_error(line):
        return "error"
    if line.startswith((">   ", "    ")):
        return "source"
    return "location" if _ENTRY.fullmatch(line) else "other"


def folded(text: str) -> str:
    """Replace the frames of tools by a note; a stack that has only such frames keeps the innermost one."""
    lines: list[str] = []
    for _, group in groupby(_parsed(text), lambda piece: isinstance(piece, str)):
        pieces = list(group)
        lines += (piece for piece in pieces if isinstance(piece, str))
        lines += _folded([piece for piece in pieces if isinstance(piece, TextFrame)])
    return "\n".join(lines)


def _folded(stack: Sequence[TextFrame]) -> Iterator[str]:
    kept = set(map(id, _without_tools(stack)))
    for is_kept, group in groupby(stack, lambda frame: id(frame) in kept):
        frames = list(group)
        if is_kept:
            yield from (line for frame in frames for line in frame.lines)
        else:
            yield f"{frames[0].margin}[... {_count(len(frames), 'frame')} of pytest, pluggy and allranks ...]"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _without_tools(stack: Sequence[TextFrame]) -> Sequence[TextFrame]:
    kept = [frame for frame in stack if not is_tool(frame.file)]
    return kept or (stack[:1] if stack and stack[0].is_of_dump else stack[-1:])


def _parsed(text: str) -> list[TextFrame | str]:
    """The frames of a text, and the other lines."""
    lines, pieces = text.split("\n"), list[TextFrame | str]()
    start = begun = 0
    while start < len(lines):
        line, end = lines[start], start + 1
        if found := _FRAME.fullmatch(line):
            while end < len(lines) and lines[end].startswith(f"{found['margin']}  "):
                end += 1
            pieces.append(_frame(found, lines[start:end], is_of_dump=found["dump"] == ""))
            begun = len(pieces)
        elif (found := _ENTRY.fullmatch(line)) and (found["name"] or not (start and lines[start - 1])):
            while found["name"] and end < len(lines) and lines[end].startswith("    "):
                end += 1
            above = [] if found["name"] else [str(piece) for piece in pieces[begun:]]
            del pieces[len(pieces) - len(above) :]
            pieces.append(_frame(found, [*above, *lines[start:end]]))
            begun = len(pieces)
        else:
            pieces.append(line)
            begun = len(pieces) if _BOUNDARY.match(line) else begun
        start = end
    return pieces


def _frame(found: re.Match[str], lines: Sequence[str], *, is_of_dump: bool = False) -> TextFrame:
    name = found["name"] or next((match[1] for match in map(_FUNCTION.match, lines) if match), "")
    return TextFrame(found["file"], int(found["line"]), name, lines, is_of_dump)


_SHOWN: Final = 4
"""The most frames of the last exception in an excerpt."""

_FEW: Final = 2
"""The most other exceptions in an excerpt, and the most frames and error lines of each."""

_ERROR_LINES: Final = 8
_VALUES: Final = 3
_WIDTH: Final = 200
_MOST_LINES: Final = 30
_LONGEST: Final = 500
"""The most characters of a file name to search for: a test can report a name of any length."""


@dataclass
class _Traceback:
    """One exception, or one thread."""

    head: str = ""  # its relation to the previous exception
    is_thread: bool = False
    is_current: bool = False
    frames: list[TextFrame] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def excerpt(text: str, file: str = "", message: str = "") -> tuple[str, ...]:
    """The last frames of the user's own code and the error with its values, in a few printable lines.

    Args:
        text: A traceback or stack dump.
        file: The test's own file, as a relative path; the paths in the excerpt are relative to the same folder.
        message: The message that the excerpt follows, which is not repeated.
    """
    found = _relevant(text.partition(OUTSIDE)[0]) or _relevant(text)
    roots = (_root(frame.file, file) for traceback in found for frame in traceback.frames)
    root = next((root for root in roots if root is not None), "")
    lines = map(printable, _shown(found, root, message) if found else _without_frames(text, message))
    shown = islice((line for line in lines if line.strip()), _MOST_LINES)
    return tuple(clipped(line, _WIDTH) for line in shown)


def _relevant(text: str) -> list["_Traceback"]:
    """The exceptions in a text; in a dump of several threads, the current thread."""
    found = [traceback for traceback in _tracebacks(_parsed(text)) if traceback.frames]
    threads = [traceback for traceback in found if traceback.is_thread]
    return [next((thread for thread in reversed(threads) if thread.is_current), threads[0])] if threads else found


def _without_frames(text: str, message: str) -> list[str]:
    lines = text.split("\n")
    errors = [line[1:] for line in lines if _is_error(line)]
    return _errors(errors or lines, message, _ERROR_LINES, ERROR_MARK if errors else "")


def _errors(lines: Sequence[str], message: str, most: int, mark: str = ERROR_MARK) -> list[str]:
    """The first lines of an error, without the first one if the message contains it."""
    error = [line for line in textwrap.dedent("\n".join(lines)).split("\n") if line.strip()]
    error = error[1:] if error and error[0].strip() in message else error
    more = [f"[... {_count(len(error) - most, 'more line')} ...]"] if len(error) > most else []
    return [f"{mark}{line}" for line in error[:most]] + more


def line_in(text: str, file: str) -> int | None:
    """The line of the innermost frame of a traceback or stack in a test's own file; None if there is none."""
    if not file or len(file) > _LONGEST or file not in text:
        return None
    name = rf"(?:[^\"\n]*/)?{re.escape(file)}"
    frame = rf'[ |]*(?:File "{name}"|file {name}), line (?P<line>\d{{1,9}})(?:(?P<comma>,?) in |$)'
    pattern = re.compile(rf"^(?:{frame}|{name}:(?P<of_entry>\d{{1,9}}): (?:in |[\w.]*$))", re.MULTILINE)
    frames = list(pattern.finditer(text))
    if not frames:
        return None
    found = frames[0 if frames[0]["comma"] == "" else -1]  # a dump begins with the innermost frame
    return int(found["line"] or found["of_entry"])


def _root(path: str, file: str) -> str | None:
    """The folder that a file's path is relative to; None if ``path`` is another file's."""
    return path.removesuffix(file) if file and f"/{path}".endswith(f"/{file}") else None


def _tracebacks(pieces: Iterable[TextFrame | str]) -> Iterator[_Traceback]:
    current, is_open = _Traceback(), True
    for piece in pieces:
        if isinstance(piece, TextFrame):
            current.frames.append(piece)
            current.errors += [line[1:] for line in piece.lines if _is_error(line)]
            is_open = True
            continue
        line = _MARKS.sub("", piece, count=1)
        if (boundary := _BOUNDARY.match(line)) and not line.startswith("_"):
            if current.frames:
                yield current
                current = _Traceback()
            current.is_thread, current.is_current = boundary["thread"] is not None, line.startswith("Current")
            is_plain = line.startswith(("Exception", "Traceback")) or current.is_thread
            current.head = current.head if is_plain else line
        elif _is_error(piece):
            current.errors.append(piece[1:])
        elif number := _NUMBER.fullmatch(piece):
            if current.frames:
                yield current
            current = _Traceback(head=f"Exception {number[1]} of the group:")
        elif is_open and line and _is_python_traceback(current):
            current.errors.append(line)
        else:
            is_open = is_open and bool(line)
    yield current


def _is_python_traceback(traceback: _Traceback) -> bool:
    return bool(traceback.frames and _FRAME.match(traceback.frames[-1].lines[0])) and not traceback.is_thread


def _is_error(line: str) -> bool:
    return line == "E" or line.startswith("E  ")


def _shown(found: Sequence[_Traceback], root: str, message: str) -> Iterator[str]:
    for index, traceback in enumerate(found):
        is_last = index == len(found) - 1
        if index >= _FEW and not is_last:
            if index == _FEW:
                yield f"[... {_count(len(found) - _FEW - 1, 'more exception')} ...]"
            continue
        if traceback.head:
            yield traceback.head
        yield from _frames(_without_tools(traceback.frames), _SHOWN if is_last else _FEW, root)
        if is_last:
            yield from traceback.frames[-1].values[:_VALUES]
        yield from _errors(traceback.errors, message, _ERROR_LINES if is_last else _FEW)


def _frames(frames: Sequence[TextFrame], most: int, root: str) -> Iterator[str]:
    """The outermost frame and the innermost ones, innermost last."""
    ordered = frames[::-1] if frames[0].is_of_dump else frames
    shown = ordered if len(ordered) <= most + 1 else [ordered[0], *ordered[1 - most :]]
    for index, frame in enumerate(shown):
        if index == 1 and len(shown) < len(ordered):
            yield f"[... {len(ordered) - len(shown)} more frames ...]"
        path = below_packages(frame.file.removeprefix(root))
        yield f"{path}:{frame.line}" + (f" in {frame.name}" if frame.name else "")
        if frame.source:
            yield f"    {frame.source}"
