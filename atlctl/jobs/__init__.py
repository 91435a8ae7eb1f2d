"""What a job is: jobs, workers, states, ranks, names, the selection grammar, errors. Standard library only."""
