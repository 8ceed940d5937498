"""The checks: each reads one GPU's reading and yields observations of its causes."""
