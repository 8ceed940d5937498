"""The kubelet of this node: which pods hold which devices. Nothing above knows gRPC."""
