"""Tests that start their ranks themselves, and what the agent makes of them."""
