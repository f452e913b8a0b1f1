"""One thin door each to what solves: allocations by interior points, programs by HiGHS, matching."""
