"""One module per system; each has `CASES`."""
