"""What the GPUs are doing and how they are: read again and again, between the driver's steps."""
