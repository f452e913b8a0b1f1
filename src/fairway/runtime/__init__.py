"""Real jobs: the daemon, its journal, and the engines that run processes."""
