"""Kubernetes backend."""
