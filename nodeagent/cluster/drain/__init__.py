"""What is done in the cluster around a change of devices, and what speaks against one."""
