"""Attacks that end the process while a test runs."""

import os

import pytest
from reach import attack


@attack("honest", "bad")
def executes_another_program(rank):
    """Rank 1 becomes a program that ends with the status of success."""
    if rank == 1:
        os.execv("/bin/true", ["true"])


@attack("honest", "bad")
def pytest_exit_0(rank):
    """Rank 1 leaves the session by pytest.exit, with the status of success."""
    if rank == 1:
        pytest.exit("all is well", returncode=0)
