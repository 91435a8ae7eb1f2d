"""The checks of `atlctl doctor`: what it runs on, and what of it works."""
