"""The life of one MPS daemon, as values and one function over them."""
