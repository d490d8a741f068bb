"""Rank 1 leaves files whose names no encoding, no terminal and no archive expects."""

import os

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}

NAMES = (
    b"\xff\xfe",
    b"new\nFORGED line",
    b"\x1b[2J",
    b"-rf",
    b" ",
    b"a" * 255,
    "\u202egnp.xml".encode(),
    b"rank-99999999.xml",
)
RANKS = (b"rank--1.xml", b"rank-1 .xml", b"rank-\xd9\xa1.xml", b"rank-1e3.xml", b"rank-" + b"9" * 240 + b".xml")


def test_attack(rank):
    for folder in reach.results() if rank == 1 else ():
        for name in (*NAMES, *RANKS):
            with open(os.path.join(os.fsencode(folder), name), "wb") as file:
                file.write(b"<testsuite/>")
