"""Summary and outputs of a step on GitHub: one line each, and never the reason for an error of their own."""

import pytest

from allranks.plugins.github.workflow_commands import add_summary, error_command, set_reason
from allranks.runner.ci_service import untrusted_output


def test_only_an_error_with_a_location_names_it():
    assert error_command("no", title="a:b", file="x.toml", line="3") == "::error title=a%3Ab,file=x.toml,line=3::no"
    assert error_command("no\n::error::x", title="t", file="") == "::error title=t::no%0A::error::x"


@pytest.mark.parametrize("text", ["no\nmatrix={}", "no\r\nmatrix={}", "no\x85matrix={}", "no\u2028matrix={}"])
def test_a_reason_sets_one_output_whatever_it_says(tmp_path, text):
    set_reason(f"  {text} ", {"GITHUB_OUTPUT": str(tmp_path / "outputs")})
    assert (tmp_path / "outputs").read_text() == "reason=no matrix={}\n"


def test_a_reason_of_any_length_is_short(tmp_path):
    set_reason("x" * 5000, {"GITHUB_OUTPUT": str(tmp_path / "outputs")})
    assert len((tmp_path / "outputs").read_text()) == len("reason=\n") + 1000


def test_a_summary_is_added_to_what_the_step_has_said(tmp_path):
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    add_summary("## no\n", {"GITHUB_STEP_SUMMARY": str(file)})
    assert file.read_text() == "before\n## no\n\n"


@pytest.mark.parametrize("file", ["", "none/summary.md", ".", "/dev/full", "a\0b"])
def test_files_that_cannot_be_written_are_no_error(tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    add_summary("no", {"GITHUB_STEP_SUMMARY": file})
    set_reason("no", {"GITHUB_OUTPUT": file})
    add_summary("no", {})
    set_reason("no", {})


def test_what_a_build_prints_is_no_command_on_github_and_unchanged_elsewhere(monkeypatch):
    def printed():
        lines = []
        with untrusted_output(lines.append):
            lines.append("::error::forged")
        return lines

    assert printed() == ["::error::forged"]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    stop, forged, start = printed()
    assert stop == f"::stop-commands::{start.strip(':')}"
    assert forged == "::error::forged"
