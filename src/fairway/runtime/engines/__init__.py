"""Where real jobs run: on this machine, or on many."""
