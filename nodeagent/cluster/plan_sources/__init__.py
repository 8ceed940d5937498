"""The plan sources that live on the Node."""
