"""Runs inside a job: the agent, its gangs and their ranks.

This package is copied into jobs, never installed there: it uses the standard library, pytest and
torch, and nothing else of allranks but :mod:`allranks.testing`.
"""
