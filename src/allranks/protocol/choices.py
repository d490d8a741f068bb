"""The allowed values of some keys of a suite, in a module of their own so that a matrix file loads fast."""

from typing import Literal

Isolation = Literal["test", "file", "job"]
UncheckedChildren = Literal["notice", "error", "ignore"]
ChildStart = Literal["cold", "warm"]
NoticeKind = Literal["state", "threads", "processes", "calls", "pytest", "warnings"]
"""The kinds of notices, which a suite can turn off; docs/report.md explains each."""
