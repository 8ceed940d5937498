"""The node's plan annotation as a plan source."""
