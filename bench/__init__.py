"""Measurements: `python -m bench`, or `make bench`. Every table it prints was measured just now."""
