"""Fan-out: runs one request on many workers, merges their logs and folds their outcomes."""
