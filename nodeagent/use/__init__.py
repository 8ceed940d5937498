"""What holders did with their devices over the last days, as digests of a fixed size. Pure."""
