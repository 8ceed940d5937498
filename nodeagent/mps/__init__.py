"""MPS daemons: what each should be, how it lives, and all talk with nvidia-cuda-mps-control."""
