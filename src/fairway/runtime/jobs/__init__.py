"""The jobs that users have submitted: what they asked for, where each is in its life, and what happens to it."""
