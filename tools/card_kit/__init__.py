"""What is examined of the agent on a machine with a GPU and without a network: packed by `make
card-kit`, run there by its script `run`.

It only looks, but for a load on the GPU and an MPS daemon of its own: it changes no MIG mode, no
compute mode, no clocks and no persistence mode, and resets nothing.
"""
