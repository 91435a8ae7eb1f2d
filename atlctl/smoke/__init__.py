"""The DDP smoke test: an agent on every worker, checks over all of them, and a verdict that names who is at fault."""
