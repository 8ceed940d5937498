"""nos' protocol as a plan source: its annotations become a plan, the node's state its status."""
