"""What the node's metrics are called, what they mean and how they are written: pure.

The catalogue says which fields there are and where in NVML each comes from; a selection says which
of them are wanted; readings become families, and families one text. Nothing here asks the driver,
knows the time or serves anything.
"""
