"""The pure core: what is desired and what is observed become an ordered list of steps.

Nothing in this package reads a clock, a file, a setting or the hardware.
"""
