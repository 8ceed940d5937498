"""The codes of problems, apart from `Problem`: reading settings needs them, and nothing slow."""

from enum import StrEnum


class Code(StrEnum):
    """Machine-readable cause of a problem; its words are in the catalogue."""

    # the document
    SYNTAX = "Syntax"
    UNKNOWN_KEY = "UnknownKey"
    INVALID_VALUE = "InvalidValue"
    UNKNOWN_DEVICE = "UnknownDevice"
    DUPLICATE_DEVICE = "DuplicateDevice"
    UNKNOWN_PROFILE = "UnknownProfile"
    UNKNOWN_CONFIGURATION = "UnknownConfiguration"
    # the card
    NOT_MIG_CAPABLE = "NotMigCapable"
    DOES_NOT_FIT = "DoesNotFit"
    UNSUPPORTED = "Unsupported"
    # the moment
    IN_USE = "InUse"
    RESET_REQUIRED = "ResetRequired"
    GPU_UNKNOWN = "GpuUnknown"
    GPU_LOST = "GpuLost"
    GPU_UNHEALTHY = "GpuUnhealthy"  # nothing new is placed on unhealthy parts
    STEP_FAILED = "StepFailed"
    NOT_RESTORED = "NotRestored"
    DRIFT = "Drift"
    MPS = "Mps"
    MPS_CLIENT = "MpsClient"  # of a client's own making; the node is as planned all the same
    DRIVER = "Driver"
    DRIVER_MISSING = "DriverMissing"  # its library is not there
    READER = "Reader"  # something cannot be read, so that its values are missing
    METRICS = "Metrics"  # some of what was asked for is not exported; nothing else is the matter
    # the agent itself
    STARVED = "Starved"  # it gets too little processor time
    NO_EFFECT = "NoEffect"  # something is set that has no effect
    AFTER_CHANGE = "AfterChange"  # the command after a change of devices failed
    SOURCE_MISSING = "SourceMissing"  # the file that should hold the plan is not there
    RUN_DIRECTORY = "RunDirectory"  # it was deleted under the agent, or cannot be written
    STATE_FILE = "StateFile"  # a file of its own state cannot be used or written
    CLAIM_REFUSED = "ClaimRefused"  # the claim itself is wrong, or another one is in its way
    # the cluster
    OWNED = "Owned"  # another program splits the node's GPUs, too
    NOT_OFFERED = "NotOffered"  # the node does not offer to pods what its GPUs are
    CONTESTED = "Contested"  # another program overwrites what this agent writes on the Node
    UNGUARDED = "Unguarded"  # no admission policy limits what the agent's account may change
    CLUSTER = "Cluster"  # a change cannot be announced to the API server, which comes first
