"""The agent as a part of its cluster: what its Node asks for, what is written there, what is done
around a change.
"""
