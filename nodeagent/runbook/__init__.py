"""What each code, check, phase, alert and XID means, and the commands that mend it.

The texts are the YAML files here, one a subject; findings and XIDs are made from the tables of
`nodeagent.health` besides. `nodeagent explain` and docs/runbook.md show the same entries. Only they
import this package, so that no other command reads it.
"""
