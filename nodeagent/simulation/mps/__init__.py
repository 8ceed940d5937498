"""MPS for everyone who has no GPU: stand-ins for NVIDIA's two programs, and clients for them.

`install` makes executables `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server` in a folder
that goes on PATH. They mimic the command line, files, replies, logs and quirks of one driver
version; how they speak with each other is their own. `Knobs` makes them go wrong.

The executables must start fast: nothing that they import may import dataclasses, pathlib or
subprocess, and this module imports nothing at all.
"""
