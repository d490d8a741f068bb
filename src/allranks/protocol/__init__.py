"""The data that crosses process boundaries: records, outcomes, job configuration, and the code that both sides need.

It needs only the standard library, and is copied into jobs.
"""
