"""From a matrix file to cells, selections and jobs. The standard library alone: noxfiles import this."""
