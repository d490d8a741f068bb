"""From a matrix file to cells, selections and jobs. The standard library and packaging alone: noxfiles import this."""
