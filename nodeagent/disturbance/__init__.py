"""What a change of the GPUs means for the cluster's other users of them, as values. Pure.

From a node's labels, annotations and pods, and a plan that is about to be carried out, come the
steps around it: whom to tell before, whom to put back afterwards, what the node should then offer,
and what speaks against it. Who carries the steps out is elsewhere. Nothing here remembers
anything: what was begun is read from the node's own labels and annotations.
"""
