"""Files of the node: durable state files, files of others, and changes of files."""
