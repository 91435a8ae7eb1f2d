"""Why a job failed: evidence to findings. Pure functions over bytes; knows no backend."""
