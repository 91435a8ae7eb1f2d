"""Names for completion: their sources, and the cache of those that only a server knows."""
