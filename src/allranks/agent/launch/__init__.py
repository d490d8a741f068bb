"""Tests that start their own ranks, and torch's classes of such tests."""
