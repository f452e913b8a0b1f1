"""One file per scheduler. A policy is a pure function from a snapshot to a decision."""
