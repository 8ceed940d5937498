"""Where plans come from, and how their changes are noticed."""
