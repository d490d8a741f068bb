"""The stacks of a process: their text, and the frames of the main thread."""

import itertools
import re
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from allranks.agent import evidence
from allranks.protocol.tracebacks import OUTSIDE, below_packages, is_tool
from allranks.protocol.xml_text import clipped

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
_CURRENT_THREAD = "Current thread 0x"
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_MOST_THREADS = 3
_TESTS_OF_TORCH = "-packages/torch/testing/_internal/distributed/"
_WAITS = ("-packages/torch/distributed/", "/allranks/testing/shared_files.py")
_WRAPPER = "/allranks/agent/rank/call_counter.py"
_NATIVE_WAITS = re.compile(r"\b(c10d|gloo|nccl\w*|tensorpipe|torch::distributed)(::|\b)")
_CUT = re.compile(r"^  \.\.\.$", re.MULTILINE)
_IMPORTED = "<module>"
"""The function name of a module that is being imported: torch imports some of its modules late, and slowly."""

_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}/"


class Frame(NamedTuple):
    """One Python frame."""

    file: str
    line: str
    name: str  # of the function


@dataclass(frozen=True)
class Stacks:
    """Stacks as written by faulthandler and py-spy; false if there are none.

    Args:
        text: All threads, innermost frames first; those of py-spy come after a title.
        code: The folder to which paths are relative; None for absolute paths.
    """

    text: str = ""
    code: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.text)

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        """The Python frames of the main thread, innermost first; preferably those that the process wrote itself.

        If the main thread could not run the signal handler, these are the frames of the thread that did.
        """
        own, _, outside = map(_main_thread, self.text.partition(OUTSIDE))
        is_complete = _FRAME.search(own) and not _CUT.search(own)
        text = own if is_complete or not _FRAME.search(outside) else outside
        return tuple(Frame(*found.groups()) for found in _FRAME.finditer(text))

    @property
    def is_cut(self) -> bool:
        """Whether the outermost frames of the main thread are missing: a process itself writes at most 100 frames."""
        return bool(_CUT.search(_main_thread(self.text)))

    @cached_property
    def user_frame(self) -> Frame | None:
        """The innermost frame of user code."""
        return next((frame for frame in self.frames if not is_library(frame.file)), None)

    @property
    def innermost(self) -> str:
        """The innermost frame of user code, as ``file:line in name``; empty if there is none."""
        frame = self.user_frame
        return f"{relative_to(self.code, frame.file)}:{frame.line} in {frame.name}" if frame else ""

    def waits_in_distributed(self, *, is_logged: bool = True) -> bool:
        """Whether the innermost frames are in torch.distributed, so that this process waits for its peers.

        C++ functions have no Python frame, but their callers do: the call counter's wrappers in a rank.

        Args:
            is_logged: The call log has a wait of this rank. Otherwise, a frame of the call counter is no proof of one.
        """
        inner = list(itertools.takewhile(lambda frame: is_library(frame.file), self.frames))
        if any(frame.name == _IMPORTED for frame in inner):
            return False
        waits = (*_WAITS, _WRAPPER) if is_logged else _WAITS
        return any(part in frame.file for frame in inner for part in waits) or self._waits_in_native_code

    @property
    def _waits_in_native_code(self) -> bool:
        """Whether py-spy shows the main thread in C++ code of torch.distributed, inside of all Python frames."""
        _, _, seen = self.text.rpartition(OUTSIDE)[2].rpartition(_CURRENT_THREAD)
        native = itertools.takewhile(lambda line: not line.startswith('  File "'), seen.splitlines()[1:])
        return any(_NATIVE_WAITS.search(line) for line in native)

    @property
    def words(self) -> str:
        """The end of a message with where the process was, "; it was in file:line in name"; empty if unknown.

        If the main thread was only in libraries, the message has up to three threads, those that wait for a peer last.
        """
        if self.innermost:
            return f"; it was in {self.innermost}"
        threads = [Stacks(text, self.code) for text in _THREAD.split(self.text.partition(OUTSIDE)[0])]
        locations = dict.fromkeys(thread.innermost for thread in sorted(threads, key=Stacks.waits_in_distributed))
        shown = itertools.islice(filter(None, locations), _MOST_THREADS)
        return "".join(f"; a thread was in {location}" for location in shown)

    @property
    def words_for_a_stop(self) -> str:
        """The end of a message with where it was stopped, " while waiting at file:line in name"; empty if unknown."""
        how = " while waiting" if self.waits_in_distributed() else ""
        return f"{how} at {self.innermost}" if self.innermost else ""


def _main_thread(stacks: str) -> str:
    """The stack of the main thread in a text; the whole text if no thread is marked as the main thread."""
    return stacks.rpartition(_CURRENT_THREAD)[2]


def relative_to(folder: Path | None, file: str) -> str:
    """The path of a file relative to this folder or, for an installed package or project, to where it is installed."""
    if folder is not None and Path(file).is_relative_to(folder):
        return str(Path(file).relative_to(folder))
    return below_packages(file)


_MOST_SOURCES = 20
_MOST_SOURCE = 1 << 20
_SOURCE_LINE = 200


def with_source(stacks: str) -> str:
    """Stacks with the line of code below each frame, as in tracebacks, if its file has at most 1 MiB."""
    files: dict[str, list[str]] = {}
    lines = []
    for line in stacks.split("\n"):
        lines.append(line)
        frame = _FRAME.fullmatch(line)
        if frame is None or is_tool(frame["file"]) or len(frame["line"]) > 9:
            continue
        if frame["file"] not in files and len(files) < _MOST_SOURCES:
            path = Path(frame["file"])
            files[frame["file"]] = evidence.read(path).split("\n") if evidence.size_of(path) <= _MOST_SOURCE else []
        source = files.get(frame["file"], [])[int(frame["line"]) - 1 : int(frame["line"])]
        lines += (f"    {clipped(line.strip(), _SOURCE_LINE)}" for line in source if line.strip())
    return "\n".join(lines)


def is_library(file: str) -> bool:
    """Whether a source file belongs to pytest, torch, allranks or the standard library instead of the user.

    Tests of torch's own suites in its wheel count as the user's.
    """
    if _TESTS_OF_TORCH in file and file.endswith("_test.py"):
        return False
    return is_tool(file) or "-packages/torch/" in file or is_standard_library(file)


def is_standard_library(file: str) -> bool:
    """Whether a source file belongs to the standard library."""
    return file.startswith((_STANDARD_LIBRARY, "<frozen ")) and "-packages/" not in file
