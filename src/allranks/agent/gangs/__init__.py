"""Ranks that run together, as their supervisor sees them: how they start, what they report, and how they end."""
