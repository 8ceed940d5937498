"""The groups of settings; a part of the agent gets its own."""
