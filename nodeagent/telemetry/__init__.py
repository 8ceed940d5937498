"""From calls of the driver to the text that Prometheus gets, and to the readings of health.

`sampling_service` says what is read when, `sampler` reads all GPUs side by side, `ownership` knows
whose a device is, and `exporter` makes one text of all that is known. A scrape calls nothing.
"""
