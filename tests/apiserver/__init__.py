"""A Kubernetes API server for tests: aiohttp over TLS, true to the recordings of a real 1.36. See README.md here."""
