"""AntMan (Xiao et al., OSDI'20): opportunistic jobs use what guaranteed ones leave over, and are not to be felt."""

from fairway.policies.antman.control import aimd
from fairway.policies.antman.policy import AntMan

__all__ = ["AntMan", "aimd"]
