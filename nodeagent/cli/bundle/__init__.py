"""`nodeagent bundle`: an archive with what a maintainer would ask for, and nothing secret in it."""
