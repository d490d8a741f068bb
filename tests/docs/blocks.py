"""The blocks of code of the README and the docs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why_not>[^\n]+) -->\n)?^(?P<indent> *)```(?P<kind>[a-z]+)\n(?P<text>.*?)^ *```",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
        page: Path of its page, relative to the root of the repository.
        line: Its first line.
        kind: The language after its fence.
        text: Its content.
        why_not: Why no test runs it; empty if a test does.
    """

    page: str
    line: int
    kind: str
    text: str
    why_not: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a console without the prompt, with the lines of a here-document."""
        return re.findall(r"^\$ (.*(?:\n(?!\$ )[^\n]*)*?<<'END'(?:\n.*?)*?\nEND|.*)$", self.text, re.MULTILINE)

    @property
    def shown(self) -> list[str]:
        """The lines of output that a console shows."""
        rest = re.sub(r"<<'END'\n.*?^END$", "", self.text, flags=re.MULTILINE | re.DOTALL)
        return [line for line in rest.splitlines() if line.strip() and not line.startswith("$ ")]


def blocks() -> Iterator[Block]:
    """All blocks of code."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            line = text[: found.start("indent")].count("\n") + 1
            yield Block(str(page.relative_to(ROOT)), line, found["kind"], found["text"], found["why_not"] or "")
