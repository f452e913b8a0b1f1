"""Fairway: one GPU scheduler for deep-learning training, simulated and real."""

__version__ = "0.1.0"
