"""Names that completion offers: where they are found, and the cache of those that only a server knows."""
