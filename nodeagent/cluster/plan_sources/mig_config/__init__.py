"""NVIDIA mig-manager's protocol: a node label names a configuration, another tells how it went.

Pure: labels, a mounted file's text and the observed cards go in; a plan and label values come out.
"""
