"""What a client knows of jobs under a supervisor, wherever that runs: their log lines, environment and states."""
