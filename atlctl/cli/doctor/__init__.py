"""The checks of `atlctl doctor`."""
