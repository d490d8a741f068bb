"""What crosses a process boundary: records, outcomes, and what else agents and orchestrator share.

It needs the standard library alone, and is copied into jobs.
"""
