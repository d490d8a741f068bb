"""From rank results to verdicts, and from verdicts to reports.

Everything here works on files alone: a report can be made again from a results folder a year later, on another
machine, without torch, without an engine and without the matrix file.
"""
