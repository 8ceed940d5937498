"""Files of MPS: directories, sockets, records, logs, and what is published for clients."""
