"""From rank results to verdicts, and from verdicts to reports.

Everything here works on files alone: a report can be regenerated from a results folder a year later, on another
machine, without torch, an engine or the matrix file.
"""
