"""``report.html``: a run as one HTML page that needs no server or network."""
