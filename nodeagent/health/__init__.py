"""Pure: whether the GPUs are well. Readings in, findings with their cause, advice and end out."""
