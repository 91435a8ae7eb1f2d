"""The job model: jobs, workers, states, ranks, names, selection of workers, errors. Standard library only."""
