"""What the workers are made of, side by side: what should be equal and is not names the one that differs."""
