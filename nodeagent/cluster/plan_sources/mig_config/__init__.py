"""NVIDIA mig-manager's protocol: a node label names a configuration, another reports on it.

Pure: labels, a mounted file's text and the observed cards go in; a plan and label values come out.
"""
