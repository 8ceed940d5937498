"""What is kept of claims on disk: their records, and the CDI files of their containers."""
