"""The steps of a plan on one GPU: each is taken and read back."""
