"""Made by the protocol buffer compiler from the .proto files here; not written by hand."""
