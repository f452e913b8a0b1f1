"""What happens on one GPU: memory that moves out of the way, and many jobs in one process."""
