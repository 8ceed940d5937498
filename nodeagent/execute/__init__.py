"""Plans carried out: steps in order, GPUs side by side, one writer at a time."""
