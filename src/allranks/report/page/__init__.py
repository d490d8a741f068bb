"""``report.html``: a run as one page without server, network or, for the essentials, script."""
