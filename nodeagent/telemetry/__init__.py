"""From samples of the GPUs to the text that Prometheus gets.

`ownership` says whose a device is, `exporter` makes one text of all that is known. Nothing here
calls the driver; who reads is given from outside.
"""
