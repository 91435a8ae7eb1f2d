"""From failures to one root cause: pure functions, one file for each way in which a job fails."""
