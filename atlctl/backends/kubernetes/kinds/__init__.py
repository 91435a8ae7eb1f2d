"""The kinds of training job: each turns an object and its pods into a job and its workers."""
