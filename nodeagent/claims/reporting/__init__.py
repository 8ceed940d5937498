"""What people, pods and the API server get to know of claims."""
