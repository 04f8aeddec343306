"""What a failure means for the next attempt."""
