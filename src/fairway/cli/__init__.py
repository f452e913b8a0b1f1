"""The command line. Thin: it parses, calls and prints; no decision is made here."""
