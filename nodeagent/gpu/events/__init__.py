"""What the driver reports by itself: NVML's events, and its lines in the kernel log."""
