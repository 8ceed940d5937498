"""`nodeagent simulate`: lets something happen on a simulated node."""
