"""`atlctl top`: one sampler in each worker, what it says, what is odd in it, and the table."""
