"""nos' protocol as a plan source: its annotations become a plan, the node's state its status.

Pure translation. What is written to the Node, and when, is decided elsewhere.
"""
