"""One GPU, many jobs: a process per GPU that hosts jobs, runs them in lanes and switches between them."""
