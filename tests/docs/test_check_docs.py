"""What scripts/check-docs finds in a page."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
from blocks import ROOT


@pytest.fixture(scope="module")
def checker():
    loader = SourceFileLoader("check_docs", str(ROOT / "scripts" / "check-docs"))
    module = module_from_spec(spec_from_loader("check_docs", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", ["word " * 36 + ".", "word " * 20 + "word: " + "word " * 16 + "."])
def test_a_sentence_of_more_than_35_words_is_found(checker, tmp_path, text):
    (tmp_path / "page.md").write_text(text)
    assert next(checker.long_texts(tmp_path / "page.md")).startswith("a sentence of 3")


def test_a_page_of_more_than_1500_words_is_found_unless_it_is_a_reference(checker, tmp_path):
    for name in ("page.md", "matrix.md"):
        (tmp_path / name).write_text("A short sentence. " * 501)
    assert list(checker.long_texts(tmp_path / "page.md")) == ["a page of 1503 words, 1500 at most"]
    assert list(checker.long_texts(tmp_path / "matrix.md")) == []


def test_reference_pages_are_those_that_the_site_lists(checker):
    assert {"matrix", "command-line", "api", "records", "glossary"} <= checker.reference()
    assert not {"index", "tutorial", "runs", "report", "images", "architecture"} & checker.reference()


def test_a_broken_link_is_found(checker, tmp_path):
    (tmp_path / "page.md").write_text("# A\n\n[here](#a) [there](other.md) [on](page.md#b)\n")
    assert list(checker.broken_links(tmp_path / "page.md")) == ["broken link to other.md", "broken link to page.md#b"]


def test_a_banned_word_is_found_with_its_replacement(checker):
    found = list(checker.banned_words("all is well\nGPU 0 is sick\n--beside torch"))
    assert found == ["line 2: instead of “sick” write: unhealthy"]
