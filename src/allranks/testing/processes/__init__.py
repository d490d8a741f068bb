"""Test cases that start their ranks themselves, as forks of the process that runs the test."""
