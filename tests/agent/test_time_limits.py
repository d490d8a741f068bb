"""Time limits in messages."""

from dataclasses import replace

import pytest
from agent_run import CONFIG

from allranks.protocol.config import AgentConfig, TimeLimit, TimeLimits


@pytest.mark.parametrize(
    ("value", "setting", "margin", "since", "words"),
    [
        (60, "limits.test", 0, "", "60 s (limits.test)"),
        (0.25, "@pytest.mark.time_limit", 0, "", "0.25 s (@pytest.mark.time_limit)"),
        (3, "limits.peer_grace", 0, "after rank 1 failed", "3 s after rank 1 failed (limits.peer_grace)"),
        (60, "limits.process_group", 5.5, "", "65.5 s (limits.process_group = 60, plus 5.5 s)"),
        (10, "--ranks-timeout", 2, "while it slept", "12 s while it slept (--ranks-timeout = 10, plus 2 s)"),
        (1800.0, "limits.job", 0, "was reached", "1800 s was reached (limits.job)"),
    ],
)
def test_a_limit_is_named_with_what_sets_it(value, setting, margin, since, words):
    limit = TimeLimit(value=value, setting=setting).plus(margin)
    assert limit.words(since) == words
    assert limit.seconds == value + margin


@pytest.mark.parametrize("name", ["process_group", "test", "job", "peer_grace", "assembly", "silence"])
def test_limits_are_keys_of_the_matrix_file_unless_something_else_sets_them(tmp_path, name):
    assert CONFIG.limits.limit(name) == TimeLimit(value=getattr(CONFIG.limits, name), setting=f"limits.{name}")
    limits = replace(CONFIG.limits, settings={name: "--option"})
    assert limits.limit(name).setting == "--option"
    (tmp_path / "config.json").write_text(replace(CONFIG, limits=limits).to_json())
    config = AgentConfig.read(tmp_path / "config.json")
    assert isinstance(config.limits, TimeLimits)
    assert config.limits.limit(name).setting == "--option"
