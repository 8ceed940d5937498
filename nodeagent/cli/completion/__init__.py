"""`nodeagent completion`: scripts by which shells complete the command line."""
