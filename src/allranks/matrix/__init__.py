"""Turns a matrix file into cells and jobs. Noxfiles import it, so it only needs the standard library and packaging."""
