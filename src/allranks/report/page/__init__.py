"""``report.html``: the run as one page that needs no server, no network, and for counts and failures no script."""
