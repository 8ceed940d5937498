"""Claims of pods: what the node offers them, what each was allocated, and what was made for it."""
