"""One scheduler per state directory: its loop, its clock, its configuration, its machine."""
