"""Made by the protocol buffer compiler from podresources.proto; not written by hand."""
