"""The connection to a control daemon: commands, replies, and what they add up to."""
