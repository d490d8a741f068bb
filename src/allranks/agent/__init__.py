"""The part of allranks that runs inside a job: the agent, its gangs and their ranks.

This package is copied into jobs and never installed there. It uses the standard library, pytest, torch and
:mod:`allranks.protocol`; suites import :mod:`allranks.testing`.
"""
