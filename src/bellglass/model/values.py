"""The words and numbers that records are made of: states, reasons, tiers, defaults and bounds."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"


class TerminationReason(StrEnum):
    """Why a sandbox is no more. `user`: deleted by its owner; `failed`: it never started or its machine died."""

    USER = "user"
    LIFETIME = "lifetime"
    IDLE = "idle"
    OOM = "oom"
    FAILED = "failed"
    NODE_LOST = "node_lost"


class Tier(StrEnum):
    """How strong the boundary is, weakest first; `microvm-emulated` stands outside of the order."""

    PROCESS = "process"
    CONTAINER = "container"
    GVISOR = "gvisor"
    MICROVM = "microvm"
    MICROVM_EMULATED = "microvm-emulated"


TIER_ORDER = (Tier.PROCESS, Tier.CONTAINER, Tier.GVISOR, Tier.MICROVM)

DEFAULT_CPUS = 2.0
DEFAULT_MEMORY = "4GiB"
DEFAULT_DISK = "10GiB"
DEFAULT_PIDS = 512
DEFAULT_LIFETIME = "10m"
DEFAULT_EXEC_TIMEOUT_S = 300.0
MAX_EXEC_TIMEOUT_S = 600.0
MAX_INPUTS_BYTES = 8 * 1024 * 1024
MAX_STDIN_BYTES = 512 * 1024
MAX_TAG_BYTES = 256
MAX_TERMINAL = 65535
"""Columns or rows of a terminal: what the kernel can hold."""
