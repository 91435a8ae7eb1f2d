"""From a job, a recording or saved files to what is known of its failure, and from there to the screen or a folder."""
