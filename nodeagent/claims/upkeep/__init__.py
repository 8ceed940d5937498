"""Records, hardware, files, kubelet and API server brought together."""
