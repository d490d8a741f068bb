"""The folder that comes out: a few flat files, written anew after each part, so that a kill at any time keeps them."""

import gzip
import html
import io
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from gpu_acceptance.verdict import PRETENDED, Verdict

_EVIDENCE: Final = 10 << 20
"""Bytes of the archive: with all else, less than the 16 MiB that the folder may have."""

_FILE: Final = 1 << 20
"""Bytes of the largest file that is evidence."""

_LOG: Final = 100_000
"""Bytes of a part's output that are logged: its end."""

_TAGS: Final = {"wrong": "failure", "not possible here": "skipped"}

_PAGE: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; }}
td, th {{ border-top: 1px solid #ccc; padding: .3em .6em; text-align: left; vertical-align: top; }}
.proved {{ color: #17692b; }} .wrong {{ color: #b00020; }} .pretended {{ background: #fff3c4; }}
</style></head><body class="{shade}"><h1>{title}</h1><p>{machine}</p>
<table><tr><th>part<th>result<th>seconds<th>figure<th>checks<th>what was seen</tr>
{rows}
</table></body></html>
"""


@dataclass
class OutFolder:
    """What an acceptance leaves.

    Attributes:
        machine: The machine in a line.
        parts: The names of all parts, in their order.
        verdicts: Of the parts that have ended, in the order of their ends.
    """

    path: Path
    machine: str
    parts: Sequence[str]
    pretended: bool
    verdicts: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict, evidence: Path | None = None) -> None:
        """Take a verdict in, and write everything.

        Args:
            verdict: Of one part.
            evidence: The part's folder; None for a part that was not run.
        """
        self.verdicts.append(verdict)
        with (self.path / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"== {verdict.line}\n{_end_of(evidence / 'output.txt') if evidence else ''}\n")
        if evidence:
            self._add_evidence(evidence)
        self._write("summary.md", "\n".join(self._summary()) + "\n")
        self._write("junit.xml", self._junit())
        self._write("report.html", self._page())

    @property
    def title(self) -> str:
        """What came of it in a line, which nobody can take for more than it is."""
        counts = [f"{self._count(outcome)} {outcome}" for outcome in ("proved", "not possible here", "wrong")]
        if missing := len(self.parts) - len(self.verdicts):
            counts.append(f"{missing} not finished")
        told = f"GPU acceptance: {', '.join(counts)}"
        return f"{PRETENDED} {told}. Nothing here was run on a GPU" if self.pretended else told

    def _count(self, outcome: str) -> int:
        return sum(verdict.outcome == outcome for verdict in self.verdicts)

    @property
    def _rows(self) -> Iterable[tuple[str, Verdict | None]]:
        """Each part, in their order, with its verdict; None if it has not ended."""
        by_part = {verdict.part: verdict for verdict in self.verdicts}
        return ((part, by_part.get(part)) for part in self.parts)

    def _summary(self) -> Iterable[str]:
        yield from (f"# {self.title}", "", "| part | result | seconds | figure |", "|---|---|--:|---|")
        for part, verdict in self._rows:
            if verdict is None:
                yield f"| {part} | not finished | | |"
            else:
                yield f"| {part} | {verdict.label} | {verdict.seconds:.1f} | {verdict.figure} |"
        yield from ("", self.machine, "")
        yield from (f"- {verdict.line}" for _, verdict in self._rows if verdict is not None)

    def _junit(self) -> str:
        name = f"{PRETENDED} gpu-acceptance" if self.pretended else "gpu-acceptance"
        counts = {
            "tests": str(len(self.verdicts)),
            "failures": str(self._count("wrong")),
            "errors": "0",
            "skipped": str(self._count("not possible here")),
        }
        suite = ET.Element("testsuite", {"name": name, **counts})
        for _, verdict in self._rows:
            if verdict is None:
                continue
            prefix = f"{PRETENDED}." if self.pretended else ""
            seconds = f"{verdict.seconds:.3f}"
            case = ET.SubElement(
                suite, "testcase", classname=f"{prefix}gpu-acceptance", name=f"{prefix}{verdict.part}", time=seconds
            )
            if tag := _TAGS.get(verdict.outcome):
                ET.SubElement(case, tag, message=_legal(verdict.line))
            ET.SubElement(case, "system-out").text = _legal(verdict.line)
        root = ET.Element("testsuites", name=name)
        root.append(suite)
        return ET.tostring(root, encoding="unicode", xml_declaration=True)

    def _page(self) -> str:
        rows = (
            f"<tr><td>{part}<td>not finished<td><td><td><td></tr>"
            if verdict is None
            else f'<tr><td>{part}<td class="{verdict.outcome}">{verdict.label}<td>{verdict.seconds:.1f}'
            f"<td>{html.escape(verdict.figure)}<td>{verdict.checks}<td>{html.escape(verdict.text)}</tr>"
            for part, verdict in self._rows
        )
        return _PAGE.format(
            title=html.escape(self.title),
            machine=html.escape(self.machine),
            shade="pretended" if self.pretended else "",
            rows="\n".join(rows),
        )

    def _write(self, name: str, text: str) -> None:
        draft = self.path / f".{name}"
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        draft.replace(self.path / name)

    def _add_evidence(self, folder: Path) -> None:
        """Append a part's files to the archive: a member of gzip each, so that no kill spoils those before."""
        archive = self.path / "evidence.tar.gz"
        packed = gzip.compress(_packed(folder), 6)
        so_far = archive.stat().st_size if archive.exists() else 0
        if so_far + len(packed) <= _EVIDENCE:
            with archive.open("ab") as file:
                file.write(packed)


def _end_of(path: Path) -> str:
    text = path.read_bytes()[-_LOG:] if path.exists() else b""
    return text.decode("utf-8", "backslashreplace")


def _of_interest(folder: Path) -> Sequence[Path]:
    """Reports, logs, stacks and notes: no suites, and nothing large."""
    names = ("*.txt", "*.log", "*.xml", "*.json", "matrix.toml", "flight-recorder-*")
    found = sorted({path for name in names for path in folder.rglob(name)})
    return [path for path in found if path.is_file() and not path.is_symlink() and path.stat().st_size <= _FILE]


def _packed(folder: Path) -> bytes:
    """A tar archive of a part without its end, so that another one may follow."""
    buffer = io.BytesIO()
    archive = tarfile.open(fileobj=buffer, mode="w")  # noqa: SIM115 - never closed: that would write the end
    for path in _of_interest(folder):
        archive.add(path, arcname=str(path.relative_to(folder.parent)), recursive=False)
    return buffer.getvalue()


def _legal(text: str) -> str:
    """Text without what XML cannot hold."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
