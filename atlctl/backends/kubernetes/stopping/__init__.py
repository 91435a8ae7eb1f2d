"""Stop and resume: the plan, its writes, the wait for what they do, and the end of processes in pods that stay."""
