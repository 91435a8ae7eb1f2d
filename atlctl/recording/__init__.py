"""Evidence that outlives the platform's clean-up. So far the reading side: saved logs and error files."""
