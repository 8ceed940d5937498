"""Client processes: what they are, what they may use, and how they are ended."""
