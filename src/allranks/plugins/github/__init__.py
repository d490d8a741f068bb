"""The plug-in ``github``: log groups, annotations, summaries and outputs on GitHub Actions."""
