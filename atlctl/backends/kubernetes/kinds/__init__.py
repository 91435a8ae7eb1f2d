"""Job kinds: each turns an object and its pods into a job with workers."""
