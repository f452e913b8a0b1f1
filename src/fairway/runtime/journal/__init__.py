"""What a restarted scheduler needs, on disk. It is written before the scheduler acts on it."""
