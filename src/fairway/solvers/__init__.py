"""Solvers, each behind one small function: allocations by interior points, programs by HiGHS, matching, task plans."""
