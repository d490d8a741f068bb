"""From a matrix file to cells and jobs. Noxfiles import it: standard library and packaging."""
