"""What `atlctl smoke` shows."""
