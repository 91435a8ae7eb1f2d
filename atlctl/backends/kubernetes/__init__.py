"""Jobs that live in Kubernetes."""
