"""The pure core: what is asked for and what is there become an ordered list of steps.

Nothing in this package reads a clock, a file, a setting or the hardware.
"""
