"""The loop: what counts, what is to be done, what was seen, what is told."""
