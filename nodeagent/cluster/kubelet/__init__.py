"""The kubelet of this node: which pods hold which devices, and, in `plugin/`, the DRA driver that
it calls. Nothing above knows gRPC.
"""

import os

# A fork while a call runs would end the child by SIGSEGV in gRPC's own handlers, before it becomes
# the program that it was made for (grpc/grpc#13998). gRPC reads this when it is imported, so here.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
