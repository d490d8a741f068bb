"""Tracebacks and stacks as text: frames of pytest, pluggy and allranks folded, and short excerpts.

Read are the styles of pytest (``path:line: in name`` with the source below it, ``path:line: Error`` with the source
above it), Python's own tracebacks with their exception groups, and dumps of stacks (faulthandler, py-spy). Tests can
write any text: nothing here raises, and the time is linear in the text's length.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, groupby, islice, takewhile
from typing import Final

from allranks.protocol.xml_text import clipped, printable

_OF_TOOLS: Final = re.compile(
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
"""What follows this line is py-spy's view of the same threads."""

_FUNCTION: Final = re.compile(r"\s*(?:async )?def (\w+)")


def is_of_tools(file: str) -> bool:
    """Whether a source file is pytest's, pluggy's or ours: the one filter of all reports."""
    return _OF_TOOLS.search(file) is not None


@dataclass(frozen=True)
class TextFrame:
    """One frame of a traceback or of a stack."""

    file: str
    line: int
    name: str  # the function; empty if the text does not name it
    lines: Sequence[str]  # its lines in the text
    is_of_dump: bool = False  # the frames below this one called it; in a traceback, the frames above it did

    @property
    def source(self) -> str:
        """The line of code that ran; empty if the text does not have it."""
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
        """The arguments of its function, as pytest shows them above the source."""
        first = list(takewhile(bool, dropwhile(lambda line: not line, self.lines)))
        is_values = len(first) < len(self.lines) and " = " in first[0] and first[0][0] not in " >E@"
        return first if is_values and not _FUNCTION.match(first[0]) else []


_TRACEBACK: Final = re.compile(r"(?:Original )?Traceback \(most recent call last\):")
_CONTENT: Final = re.compile(r"[^\s=*#~+|:-]")
"""Any character that is not one of those which rules are drawn with."""

_ONLY_TYPE: Final = re.compile(r"(?P<type>[\w.]+:)[\s=*#~+|-]*")
_MOST_PARTS: Final = 3


def headline(text: str) -> str:
    """The line of an exception's text that says what happened, for a reader who sees no other.

    That is its first line, unless it has only the type or ends with a colon: then the next lines with content follow.
    If the message itself has a traceback, as that of a process which ``torch.multiprocessing`` started, the exception
    at its end completes the line. The text is as ``traceback.format_exception_only`` has it, ``Type: message``.
    """
    lines = [line for line in text.splitlines() if _CONTENT.search(line)]
    if lines and lines[0].lstrip().startswith('File "'):  # the place of a SyntaxError, above its type
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
    """The first line of the exception at the end of some lines, which begin within a traceback."""
    found: list[str] = []
    for line in lines:
        if _TRACEBACK.fullmatch(line.strip()):
            found = []
        elif not found and not line.startswith(" "):
            found = [line]
    return found


def folded(text: str) -> str:
    """``text`` with a note in place of the frames of tools; of a stack that has no others, the innermost stays."""
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
    kept = [frame for frame in stack if not is_of_tools(frame.file)]
    return kept or (stack[:1] if stack and stack[0].is_of_dump else stack[-1:])


def _parsed(text: str) -> list[TextFrame | str]:
    """The frames of a text, and each line that belongs to none."""
    lines, pieces = text.split("\n"), list[TextFrame | str]()
    at = begun = 0
    while at < len(lines):
        line, end = lines[at], at + 1
        if found := _FRAME.fullmatch(line):
            while end < len(lines) and lines[end].startswith(f"{found['margin']}  "):
                end += 1
            pieces.append(_frame(found, lines[at:end], is_of_dump=found["dump"] == ""))
            begun = len(pieces)
        elif (found := _ENTRY.fullmatch(line)) and (found["name"] or not (at and lines[at - 1])):
            while found["name"] and end < len(lines) and lines[end].startswith("    "):
                end += 1
            above = [] if found["name"] else [str(piece) for piece in pieces[begun:]]
            del pieces[len(pieces) - len(above) :]
            pieces.append(_frame(found, [*above, *lines[at:end]]))
            begun = len(pieces)
        else:
            pieces.append(line)
            begun = len(pieces) if _BOUNDARY.match(line) else begun
        at = end
    return pieces


def _frame(found: re.Match[str], lines: Sequence[str], *, is_of_dump: bool = False) -> TextFrame:
    name = found["name"] or next((match[1] for match in map(_FUNCTION.match, lines) if match), "")
    return TextFrame(found["file"], int(found["line"]), name, lines, is_of_dump)


_SHOWN: Final = 4
_FEW: Final = 2
"""Frames, and lines of the error, of each exception but the last."""

_ERROR_LINES: Final = 8
_VALUES: Final = 3
_WIDTH: Final = 200
_MOST_LINES: Final = 30
_LONGEST: Final = 500
"""Characters of a file's name that are searched for: a name can be as long as a test likes."""


@dataclass
class _Traceback:
    """One exception, or one thread."""

    head: str = ""  # how it is related to the exception before it
    is_thread: bool = False
    is_current: bool = False
    frames: list[TextFrame] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def excerpt(text: str, file: str = "", message: str = "") -> tuple[str, ...]:
    """The last frames of the user's own code and the error with its values, in a few printable lines.

    Paths are shown as relative to the folder that `file` is relative to; what the message shows is not repeated.
    """
    found = _leading(text.partition(OUTSIDE)[0]) or _leading(text)
    root = next((root for each in found for frame in each.frames if (root := _root(frame.file, file)) is not None), "")
    lines = map(printable, _shown(found, root, message) if found else _without_frames(text, message))
    shown = islice((line for line in lines if line.strip()), _MOST_LINES)
    return tuple(clipped(line, _WIDTH) for line in shown)


def _leading(text: str) -> list["_Traceback"]:
    """The exceptions in a text, or of several threads the one that was asked."""
    found = [each for each in _tracebacks(_parsed(text)) if each.frames]
    threads = [each for each in found if each.is_thread]
    return [next((each for each in reversed(threads) if each.is_current), threads[0])] if threads else found


def _without_frames(text: str, message: str) -> list[str]:
    lines = text.split("\n")
    errors = [line[1:] for line in lines if _is_error(line)] or lines
    return _errors(errors, message, _ERROR_LINES)


def _errors(lines: Sequence[str], message: str, most: int) -> list[str]:
    """The first lines of an error, without one that the message has."""
    told = [line for line in textwrap.dedent("\n".join(lines)).split("\n") if line.strip()]
    told = told[1:] if told and told[0].strip() in message else told
    more = [f"[... {_count(len(told) - most, 'more line')} ...]"] if len(told) > most else []
    return told[:most] + more


def line_in(text: str, file: str) -> int | None:
    """The line of a test's own file that a traceback or stack leads through last; None if it does not."""
    if not file or len(file) > _LONGEST or file not in text:
        return None
    name = rf"(?:[^\"\n]*/)?{re.escape(file)}"
    frame = rf'[ |]*(?:File "{name}"|file {name}), line (?P<line>\d{{1,9}})(?:(?P<comma>,?) in |$)'
    pattern = re.compile(rf"^(?:{frame}|{name}:(?P<of_entry>\d{{1,9}}): (?:in |[\w.]*$))", re.MULTILINE)
    places = list(pattern.finditer(text))
    if not places:
        return None
    found = places[0 if places[0]["comma"] == "" else -1]  # a dump begins with the innermost frame
    return int(found["line"] or found["of_entry"])


def _root(path: str, file: str) -> str | None:
    """The folder that a file's path is relative to; None if ``path`` is another file's."""
    return path.removesuffix(file) if file and f"/{path}".endswith(f"/{file}") else None


def _tracebacks(pieces: Iterable[TextFrame | str]) -> Iterator[_Traceback]:
    now, is_open = _Traceback(), True
    for piece in pieces:
        if isinstance(piece, TextFrame):
            now.frames.append(piece)
            now.errors += [line[1:] for line in piece.lines if _is_error(line)]
            is_open = True
            continue
        line = _MARKS.sub("", piece, count=1)
        if (boundary := _BOUNDARY.match(line)) and not line.startswith("_"):
            if now.frames:
                yield now
                now = _Traceback()
            now.is_thread, now.is_current = boundary["thread"] is not None, line.startswith("Current")
            now.head = now.head if line.startswith(("Exception", "Traceback")) or now.is_thread else line
        elif _is_error(piece):
            now.errors.append(piece[1:])
        elif number := _NUMBER.fullmatch(piece):
            if now.frames:
                yield now
            now = _Traceback(head=f"Exception {number[1]} of the group:")
        elif now.frames and is_open and line and _FRAME.match(now.frames[-1].lines[0]) and not now.is_thread:
            now.errors.append(line)
        else:
            is_open = is_open and bool(line)
    yield now


def _is_error(line: str) -> bool:
    return line == "E" or line.startswith("E  ")


def _shown(found: Sequence[_Traceback], root: str, message: str) -> Iterator[str]:
    for place, each in enumerate(found):
        is_last = place == len(found) - 1
        if place >= _FEW and not is_last:
            if place == _FEW:
                yield f"[... {_count(len(found) - _FEW - 1, 'more exception')} ...]"
            continue
        if each.head:
            yield each.head
        yield from _frames(_without_tools(each.frames), _SHOWN if is_last else _FEW, root)
        if is_last:
            yield from each.frames[-1].values[:_VALUES]
        yield from _errors(each.errors, message, _ERROR_LINES if is_last else _FEW)


def _frames(frames: Sequence[TextFrame], most: int, root: str) -> Iterator[str]:
    """The first frame and the last ones, innermost last."""
    ordered = frames[::-1] if frames[0].is_of_dump else frames
    shown = ordered if len(ordered) <= most + 1 else [ordered[0], *ordered[1 - most :]]
    for place, frame in enumerate(shown):
        if place == 1 and len(shown) < len(ordered):
            yield f"[... {len(ordered) - len(shown)} more frames ...]"
        path = frame.file.removeprefix(root).rpartition("-packages/")[2]
        yield f"{path}:{frame.line}" + (f" in {frame.name}" if frame.name else "")
        if frame.source:
            yield f"    {frame.source}"
