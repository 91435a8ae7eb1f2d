"""`atlctl run`: the wrapper of a job's command in each worker."""
