"""The NVIDIA driver: observing GPUs and applying single steps. Nothing above knows pynvml."""
