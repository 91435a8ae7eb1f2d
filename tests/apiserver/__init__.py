"""Kubernetes API server for tests: aiohttp over TLS, faithful to recordings of a real 1.36. See README.md here."""
