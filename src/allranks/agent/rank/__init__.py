"""Runs in the process of a rank."""
