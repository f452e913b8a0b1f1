"""How fast a job runs: throughput profiles, packing interference, restart cost, batch-size regimes. Pure."""
