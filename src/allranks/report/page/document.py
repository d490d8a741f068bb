"""The page as one document: its static part, its style, its script, and what the script unpacks.

Nothing that a test or a rank said stands in it but escaped, or packed in base64; and whatever slipped through would not
run: the page's own policy lets in one style and one script, by their hashes, and lets nothing out.
"""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from string import Template
from typing import Final

from allranks.report.page.static import Static, escaped

GENERATOR: Final = '<meta name="generator" content="allranks">'
"""By which a page is known for what it is."""

_DATA: Final = "application/octet-stream"
"""A type that no browser runs."""


def document(static: Static, index: str, chunks: Sequence[str]) -> str:
    """The whole page.

    Args:
        static: What can be read without the script.
        index: All testcases, packed.
        chunks: What they tell when they are opened, packed.
    """
    style, script = _resource("page.css"), _resource("page.js")
    return Template(_resource("page.html")).substitute(
        generator=GENERATOR,
        policy=_policy(style, script),
        title=escaped(static.title),
        style=style,
        header=static.header,
        matrix=static.matrix,
        failures=static.failures,
        skips=static.skips,
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
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _island(name: str, packed: str) -> str:
    return f'<script type="{_DATA}" id="{name}">{packed}</script>'


@cache
def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
