"""What `nodeagent check` looks at, one module a subject."""
