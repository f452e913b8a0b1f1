"""The types that everything stands on, and the one scheduling round. Needs only NumPy and the standard library."""
