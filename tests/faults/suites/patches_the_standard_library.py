"""Tests patch functions of the standard library that ranks need: each has the outcome that it would have without."""

import json
import os
import random
import socket
import time

import torch.distributed as dist

FAULT = {
    "test": "test_patches_and_fails",
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed: AssertionError: patched"],
    "others": {
        "test_leaves_and_fails": {
            "verdict": ("failure", "failed"),
            "leading": 1,
            "ranks": ["passed", "failed"],
            "words": ["rank 1 failed: AssertionError: left"],
        },
    },
    "seconds": 8,
}


def patch(put):
    put(json, "dumps", None)
    put(json, "loads", None)
    put(os, "getpid", lambda: 1)
    put(os, "write", None)
    put(random, "seed", None)
    put(socket.socket, "sendall", None)
    put(time, "time", lambda: 0.0)
    put(time, "monotonic", lambda: 0.0)
    put(time, "clock_gettime", None)


def test_patches(monkeypatch):
    patch(monkeypatch.setattr)


def test_patches_and_fails(monkeypatch, rank):
    patch(monkeypatch.setattr)
    assert rank == 0, "patched"


def test_leaves_them():
    patch(setattr)


def test_finds_them():
    assert json.dumps is None
    dist.barrier()


def test_leaves_and_fails(rank):
    patch(setattr)
    assert rank == 0, "left"
