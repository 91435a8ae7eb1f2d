"""Evidence that outlives the platform's clean-up. Saved logs and error files are read here, and written."""
