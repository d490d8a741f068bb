"""A browser that looks at pages, and a reader of what they carry."""

import base64
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers, which pytest's importlib mode does not find

from chromium import Browser, Page, chromium, find_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    executable = find_chromium()
    assert executable
    with chromium(executable) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on a desktop. Whatever a test does with it, no script breaks and no request leaves."""
    opened = browser.page()
    opened.size(1400, 900)
    yield opened
    complaints, requests = opened.complaints, opened.requests
    opened.close()
    assert not complaints
    assert [url for url in requests if not url.startswith(("file:", "about:"))] == []


@pytest.fixture(scope="session")
def unpacked() -> Callable[[Path], dict[str, Any]]:
    """What a page carries for its script: ``rest``, ``blocks`` and ``chunks``."""

    def read(path: Path) -> dict[str, Any]:
        islands = dict(
            re.findall(r'<script type="application/octet-stream" id="([^"]+)">([^<]*)</script>', path.read_text())
        )
        texts = {name: zlib.decompress(base64.b64decode(packed)) for name, packed in islands.items()}
        *blocks, rest = map(json.loads, texts.pop("index").splitlines())
        return {"rest": rest, "blocks": blocks, "chunks": [json.loads(text) for text in texts.values()]}

    return read
