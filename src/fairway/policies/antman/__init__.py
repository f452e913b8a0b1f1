"""AntMan (Xiao et al., OSDI'20): opportunistic jobs use what guaranteed jobs leave over, and hardly slow them down."""

from fairway.policies.antman.control import aimd
from fairway.policies.antman.policy import AntMan

__all__ = ["AntMan", "aimd"]
