"""The seccomp profile of jobs."""

import json
import re
from itertools import chain

import pytest
from services import KERNEL_HEADER

from allranks.engines.docker_requests import _SECCOMP

PROFILE = json.loads(_SECCOMP.read_text(encoding="utf-8"))
RULES = PROFILE["syscalls"]
ALLOWED = set(chain.from_iterable(rule["names"] for rule in RULES if rule["action"] == "SCMP_ACT_ALLOW"))
REFUSED = set(chain.from_iterable(rule["names"] for rule in RULES if rule["action"] == "SCMP_ACT_ERRNO"))

RETIRED = {
    *("afs_syscall", "epoll_ctl_old", "epoll_wait_old", "getpmsg", "putpmsg", "security", "tuxcall", "vserver"),
}
"""System calls that no kernel supports anymore."""


def test_every_rule_has_a_reason():
    assert all(len(rule["comment"].split()) > 1 for rule in RULES)


def test_what_is_not_listed_is_refused_as_what_the_kernel_does_not_know():
    """Libraries have fallbacks for calls that are newer than the profile."""
    assert (PROFILE["defaultAction"], PROFILE["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)


def test_no_call_is_allowed_and_refused():
    assert ALLOWED.isdisjoint(REFUSED)


@pytest.mark.parametrize(
    "name",
    [
        *("io_uring_setup", "keyctl", "bpf", "userfaultfd", "perf_event_open", "mount", "unshare", "setns", "clone3"),
        *("kexec_load", "init_module", "open_by_handle_at", "fsopen", "move_mount", "syslog", "clock_settime"),
    ],
)
def test_what_reaches_past_a_container_is_refused(name):
    assert name in REFUSED


def test_a_process_can_be_made_in_its_parents_namespaces_alone():
    [rule] = [rule for rule in RULES if rule["names"] == ["clone"]]
    new_namespaces = 0x7E020000  # CLONE_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET of sched.h
    assert rule["args"] == [{"index": 0, "value": new_namespaces, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]


@pytest.mark.compiler
def test_each_call_of_the_kernel_is_allowed_or_refused_by_name():
    header = KERNEL_HEADER.read_text(encoding="ascii")
    known = set(re.findall(r"#define __NR_(\w+)\s", header))
    assert len(known) > 300
    newer = {name for name in known if int(re.search(rf"__NR_{name}\s+(\d+)", header).group(1)) > 450}
    assert known - newer - RETIRED <= ALLOWED | REFUSED
