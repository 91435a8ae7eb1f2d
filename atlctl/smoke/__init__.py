"""The DDP smoke test: an agent on every worker, checks across all workers, and a verdict that names the culprit."""
