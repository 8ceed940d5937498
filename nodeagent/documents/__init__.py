"""What comes from outside as text, and the node's picture as text: plans and mig-parted files.

A text becomes a `PlanDocument` or is refused whole with every fault found in it. Nothing here
looks at hardware; what the devices and profiles of a document mean on a card is decided by
`nodeagent.plan.resolve`.
"""
