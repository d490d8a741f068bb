"""One rank uses words or types that torch has for a peer that is gone: whoever goes wrong first by itself leads."""

import ctypes
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "test": "test_the_cause_goes_first",
    "limits": {
        "process_group": 4,
        "test": 8,
        "job": 120,
    },
    "seconds": 35,
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["failed", "failed"],
    "words": ["rank 1 failed", "the cause"],
    "others": {
        "test_words_of_gloo_go_first": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "failed"],
            "words": ["rank 0 failed", "gloo: timed out"],
        },
        "test_a_type_of_torchs": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "failed"],
            "words": ["rank 0 failed", "DistNetworkError"],
        },
        "test_words_of_the_watchdog_and_a_crash": {
            "verdict": ("error", "crashed"),
            "leading": 1,
            "ranks": ["failed", "crashed"],
            "words": ["rank 1 was killed by SIGSEGV"],
        },
        "test_a_wrong_argument_while_a_peer_works": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "invalid root rank"],
        },
        "test_fails_by_itself_while_a_peer_works": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed: assert 0 == 1"],
        },
        "test_fails_after_it_sent_while_a_peer_works": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed: assert 0 == 1"],
        },
        "test_an_expected_timeout_and_then_its_own_failure": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed: assert 0 == 1"],
        },
    },
}


def fail(kind, words):
    raise kind(words)


def test_the_cause_goes_first(rank):
    if rank == 1:
        fail(ValueError, "the cause")
    time.sleep(0.3)
    fail(RuntimeError, "gloo: timed out, broken pipe")


def test_words_of_gloo_go_first(rank):
    if rank == 0:
        fail(RuntimeError, "gloo: timed out, connection closed by peer")
    time.sleep(0.3)
    fail(ValueError, "later")


def test_a_type_of_torchs(rank):
    if rank == 0:
        fail(dist.DistNetworkError, "connection reset by peer")
    time.sleep(0.3)
    fail(ValueError, "later")


def test_words_of_the_watchdog_and_a_crash(rank):
    if rank == 1:
        print("Watchdog caught collective operation timeout", file=sys.stderr, flush=True)
        ctypes.string_at(0)
    time.sleep(0.5)
    fail(ValueError, "later")


def test_a_wrong_argument_while_a_peer_works(rank):
    if rank == 0:
        dist.broadcast(torch.ones(4), 7)
    time.sleep(100)


def test_fails_by_itself_while_a_peer_works(rank):
    assert rank == 1
    time.sleep(100)


def test_fails_after_it_sent_while_a_peer_works(rank):
    if rank == 1:
        time.sleep(100)
    dist.isend(torch.ones(4), 1)
    assert rank == 1


def test_an_expected_timeout_and_then_its_own_failure(rank):
    if rank == 1:
        time.sleep(100)
    with pytest.raises(RuntimeError):
        dist.distributed_c10d._get_default_store().wait(["never"], timedelta(seconds=0.2))
    assert rank == 1
