"""How daemon processes are started, and how orphans of earlier ones are ended."""
