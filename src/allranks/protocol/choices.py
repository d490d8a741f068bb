"""The choices that a suite's keys and its jobs share; apart from the rest, so that a matrix loads fast."""

from typing import Literal

Isolation = Literal["test", "file", "job"]
UncheckedChildren = Literal["notice", "error", "ignore"]
ChildStart = Literal["cold", "warm"]
NoticeKind = Literal["state", "threads", "processes", "calls", "pytest", "warnings"]
"""What a notice is about, so that a suite can turn it off; docs/report.md explains each."""
