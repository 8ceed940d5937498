"""The reconciliation loop, the plan in force, retries, drift and the event log."""
