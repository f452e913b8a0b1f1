"""The simulated engine: a virtual clock, closed-form progress, faults by seed, metrics."""
