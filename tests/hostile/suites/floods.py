"""Attacks that flood the harness with output, reports or tests."""

import logging
import os
import warnings

import pytest
import reach
from reach import attack


@attack("honest", "bad")
def a_line_without_an_end(rank):
    """Rank 1 prints 64 MiB without the end of a line, and fails."""
    if rank == 1:
        for _ in range(64):
            os.write(1, b"x" * reach.MIB)
        raise AssertionError


@attack("honest|timed_out", "any", is_sample=True)
def endless_message(rank):
    """Rank 1 writes a message of 64 MiB that does not end into each descriptor that it has."""
    if rank == 1:
        reach.write_own(reach.ENDLESS)


@attack("honest|timed_out", "bad")
def huge_message(rank):
    """Rank 1 fails with a message of 64 MiB, of what XML forbids."""
    if rank == 1:
        raise AssertionError("\x00\ud800\ufffe&<" * (10 * reach.MIB))


@attack("honest|timed_out", "bad")
def long_chain(rank):
    """Rank 1 fails with 2,000 exceptions, each the cause of the next."""
    if rank == 1:
        error = ValueError("first")
        for number in range(2000):
            error, cause = ValueError(number), error
            error.__cause__ = cause
        raise error


@attack("honest|timed_out", "bad")
def many_lines(rank):
    """Rank 1 prints 4 million lines on both of its outputs, and fails."""
    if rank == 1:
        for _ in range(400):
            os.write(1, b"x\n" * 5000)
            os.write(2, b"y\n" * 5000)
        raise AssertionError


@attack("honest|timed_out", "bad")
def many_log_records(rank):
    """Rank 1 logs 50,000 records, and one of 32 MiB."""
    if rank == 1:
        for number in range(50_000):
            logging.getLogger("hostile").error("record %d \x1b[2J\x00", number)
        logging.getLogger("hostile").error("x" * 32 * reach.MIB)
        raise AssertionError


@attack("honest|timed_out", "any")
def many_messages(rank):
    """Rank 1 writes 2 million small messages into each descriptor that it has."""
    if rank == 1:
        reach.write_own(b"{}\n\x1e{}\n" * 1_000_000)


@attack("honest|timed_out", "bad")
def many_properties(rank, record_property):
    """Rank 1 records 5,000 properties of 10 kB, and one of what no file can hold."""
    if rank == 1:
        for number in range(5000):
            record_property(f"property {number}", "x" * 10_000)
        record_property("\x00\ud800", object())
        raise AssertionError


@attack("honest|timed_out", "any")
def many_reports(rank, request):
    """Rank 1 reports the same phase 20,000 times."""
    if rank == 1:
        call = pytest.CallInfo.from_call(lambda: None, when="call")
        report = pytest.TestReport.from_item_and_call(request.node, call)
        for _ in range(20_000):
            request.config.hook.pytest_runtest_logreport(report=report)


@attack("honest|timed_out", "bad")
@pytest.mark.time_limit(30)
def many_subtests(rank, subtests):
    """Rank 1 fails 1,000 subtests, and passes 1,000."""
    for number in range(2000) if rank == 1 else ():
        with subtests.test(number=number):
            assert number % 2


@attack("honest|timed_out", "bad")
def many_warnings(rank):
    """Rank 1 warns 20,000 times, each time of something else."""
    if rank == 1:
        for number in range(20_000):
            warnings.warn(f"number {number} \ud800 \x00", stacklevel=1)
        raise AssertionError


@attack("honest|timed_out", "any")
def nothing_but_zeros(rank):
    """Rank 1 writes 16 MiB of zeros into each descriptor that it has."""
    if rank == 1:
        reach.write_own(bytes(16 * reach.MIB))
