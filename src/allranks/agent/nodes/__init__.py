"""Agents on several nodes, one of which leads the others."""
