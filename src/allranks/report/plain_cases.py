"""Reads the testcases that say nothing but that they passed, which nearly all do, in runs and without expat.

A million testcases take expat's handlers five seconds, and regular expressions less than two. Where a run of plain ones
stood, an element is left for expat, which so still decides what is well-formed, and where a testcase counts: within a
failure's text it is text. Whatever is not written exactly as pytest writes it, expat reads as ever.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Final

_TEXT: Final = r"[ !#-%'-;=-~]*+"  # printable, ASCII, and neither quote nor ampersand nor angle
_NUMBER: Final = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_PROPERTY: Final = '<property name="allranks.%s" value="%s" />'
_PROPERTIES: Final = "".join(
    _PROPERTY % named
    for named in (
        ("nodeid", f"({_TEXT})"),
        ("outcome", "passed"),
        ("world_size", "([0-9]{1,4})"),
        ("at", f"({_NUMBER})"),
    )
)
_CASE: Final = (
    f'<testcase classname="({_TEXT})" name="({_TEXT})" time="({_NUMBER})"'
    f"(?: ?/>|><properties>{_PROPERTIES}</properties></testcase>)"
)
_CASES: Final = re.compile(_CASE)
_RUN: Final = re.compile(f"(?:{re.sub(r'[(](?![?])', '(?:', _CASE)})++".encode("ascii"))
_HIDING: Final = re.compile(rb"<[!?]")  # comments and the like: what seems a testcase in them is none
_ENCODINGS: Final = frozenset({"ascii", "us-ascii", "utf-8"})


class PlainCases:
    """Takes runs of plain testcases out of one document.

    Attributes:
        marker: The tag of the elements that stand where a run stood. No document can know it beforehand.
    """

    def __init__(self) -> None:
        self.marker = f"run-{secrets.token_hex(8)}"
        self._runs: dict[str, bytes] = {}
        self._number = 0
        self._last: bytes | None = None
        self._takes = True

    def see_encoding(self, encoding: str | None) -> None:
        """Learn what the document's declaration says: in others than these, a byte may be another letter."""
        self._takes = self._takes and (encoding or "utf-8").lower() in _ENCODINGS

    def see(self, chunk: bytes) -> None:
        """Look at the next chunk without taking anything from it."""
        seen = chunk[2:] if self._last is None else self._last + chunk  # a declaration begins like an instruction
        self._takes = self._takes and not _HIDING.search(seen)
        self._last = chunk[-1:]

    def take(self, chunk: bytes) -> bytes:
        """The next chunk, with elements of the tag :attr:`marker` instead of runs."""
        self.see(chunk)
        return _RUN.sub(self._take_run, chunk) if self._takes else chunk

    def _take_run(self, run: re.Match[bytes]) -> bytes:
        self._number += 1
        number = str(self._number)
        self._runs[number] = run.group()
        return f'<{self.marker} n="{number}"/>'.encode("ascii")

    def run(self, attributes: Mapping[str, str]) -> list[tuple[str, ...]]:
        """The testcases of the run that stood where an element with these attributes stands.

        Returns:
            For each its classname, name and time, the node id that it says, its world's size, and when its outcome
            arrived. The last three are empty where it does not say them.
        """
        return _CASES.findall(self._runs.pop(attributes["n"]).decode("ascii"))
