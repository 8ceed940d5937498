"""nodeagent owns how the NVIDIA GPUs of one node are split."""

__version__ = "0.1.0"
