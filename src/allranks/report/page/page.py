"""Renders the HTML document: a static frame with the counts, and the data from which its script shows the rest.

All text from tests and ranks is escaped, or packed in base64. Anything that slipped through would still not run: the
page's content security policy allows one style and one script, by their hashes, and no outgoing requests.
"""

import base64
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Final

from allranks.errors import counted
from allranks.protocol.xml_text import clipped, readable
from allranks.report.judged import Counts, MergedRun
from allranks.report.status import Status
from allranks.report.summary import times

_SHOWN_NOTES: Final = 100
_LONGEST_FACT: Final = 500

_FAILURES: Final = (
    '<section id="failures" class="js-only" aria-labelledby="failures-title"><h2 id="failures-title">Failures</h2>'
    '<div id="failures-body"><p class="none">No failures.</p></div></section>'
)
_MATRIX: Final = (
    '<section id="matrix" class="js-only" aria-labelledby="matrix-title"><h2 id="matrix-title">Matrix <small>cells by '
    'suites</small></h2><div class="wide" id="matrix-body" tabindex="0" role="region" aria-label="Cells by suites">'
    "</div></section>"
)

_ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))}
"""Line separators and bidirectional marks: their effect does not end with the element, so they could reverse text."""


@dataclass(frozen=True, kw_only=True)
class Static:
    """The static part of the page."""

    merged: MergedRun
    omitted: str = ""  # a sentence about what the page omits, if anything

    @property
    def title(self) -> str:
        """The title of the browser's tab."""
        bad = self.merged.counts.bad
        return f"{f'{bad:,} failed' if bad else 'no failures'} · {readable(self.merged.run_id)} · allranks"

    @property
    def header(self) -> str:
        """The result of the run, as a sentence and as numbers."""
        counts = self.merged.counts
        state = "bad" if counts.bad else "good" if counts.passed else "idle"
        return (
            f'<h1 class="{state}">{_sentence(counts)}</h1>'
            f'<p class="run">Run <bdi>{escaped(self.merged.run_id)}</bdi>: {_size(self.merged)}</p>'
            f'<dl class="facts">{"".join(_facts(self.merged))}</dl>'
            f'<ul class="counts" id="counts">{"".join(_counts(counts))}</ul>'
            + (f'<p class="listed">{escaped(self.omitted)}</p>' if self.omitted else "")
        )

    @property
    def sections(self) -> str:
        """Failures, then the matrix; without failures, the matrix comes first."""
        return "\n".join((_FAILURES, _MATRIX) if self.merged.counts.bad else (_MATRIX, _FAILURES))

    @property
    def added(self) -> str:
        """The sections of plug-ins."""
        return "\n".join(
            f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">'
            f"{escaped(section.title)} <small>{escaped(section.headline)}</small></h2>{section.html}</section>"
            for name, section in self.merged.shown_sections.items()
        )

    @property
    def notes(self) -> str:
        notes = self.merged.notes
        more = [f"And {len(notes) - _SHOWN_NOTES} more, in summary.md."] if len(notes) > _SHOWN_NOTES else []
        return "".join(f"<li>{escaped(note)}</li>" for note in (*notes[:_SHOWN_NOTES], *more))


def escaped(text: str) -> str:
    """Escape ``text`` for HTML, including characters that could change the direction of nearby text."""
    return html.escape(readable(text).translate(_ESCAPES))


def _sentence(counts: Counts) -> str:
    if counts.bad:
        return f"{counts.bad:,} of {counted(counts.tests, 'test')} failed"
    if not counts.tests:
        return "This run has no tests"
    return f"No failures: {counts.passed:,} of {counted(counts.tests, 'test')} passed"


def _size(merged: MergedRun) -> str:
    cells = len({row.cell for row in merged.suites})
    suites = len({row.share.suite if row.share else row.suite for row in merged.suites})
    policy = "; environment skips count as passed" if merged.policy == "pass" else ""
    return f"{counted(cells, 'cell')}, {counted(suites, 'suite')}, {times(merged)}{policy}"


def _facts(merged: MergedRun) -> Iterator[str]:
    """The known facts about the run: date, host, versions and command."""
    run = merged.manifest
    facts = {
        "date": run.started.replace("T", " ").replace("+00:00", " UTC") if run else "",
        "host": run.host if run else "",
        "commit": run.commit if run else "",
        "torch": ", ".join(sorted({row.torch for row in merged.suites if row.torch})),
        "engine": ", ".join(sorted({row.engine for row in merged.suites if row.engine})),
        "allranks": run.allranks if run else "",
        "command": run.command if run else "",
    }
    yield from (
        f"<div><dt>{name}</dt> <dd><bdi>{escaped(clipped(value, _LONGEST_FACT))}</bdi></dd></div>"
        for name, value in facts.items()
        if value
    )


def _counts(counts: Counts) -> Iterator[str]:
    for status, count in (
        (Status.FAILED, counts.failed),
        (Status.ERROR, counts.errors),
        (Status.FLAKY, counts.flaky),
        (Status.PASSED, counts.passed - counts.skip_but_pass),
        (Status.PASSED_SKIP, counts.skip_but_pass),
        (Status.SKIPPED, counts.skipped),
    ):
        if count or status not in {Status.FLAKY, Status.PASSED_SKIP}:
            yield f'<li class="v-{status}{"" if count else " none"}"><b>{count:,}</b> {status.word_for(count)}</li>'


GENERATOR: Final = '<meta name="generator" content="allranks">'
"""The mark by which allranks recognizes its own pages."""

_DATA: Final = "application/octet-stream"
"""A script type that no browser executes."""


def document(static: Static, index: str, chunks: Sequence[str]) -> str:
    """The whole page; the list of testcases and their details are packed."""
    style, script = _resource("page.css"), _resource("page.js")
    return Template(_resource("page.html")).substitute(
        generator=GENERATOR,
        policy=_policy(style, script),
        title=escaped(static.title),
        style=style,
        header=static.header,
        junit=escaped(static.merged.junit.name),
        sections=static.sections,
        added=static.added,
        notes=static.notes,
        data="\n".join([_island("index", index), *(_island(f"chunk-{n}", chunk) for n, chunk in enumerate(chunks))]),
        script=script,
    )


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    import hashlib  # noqa: PLC0415 - OpenSSL takes 4 MB, which the merge before this does not need

    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _island(name: str, packed: str) -> str:
    return f'<script type="{_DATA}" id="{name}">{packed}</script>'


@cache
def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
