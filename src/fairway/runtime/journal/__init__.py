"""What a restarted scheduler needs, on disk: written before it is acted on, and read back."""
