"""An accepted image → a running service: on one Docker Engine, or in a Kubernetes cluster."""
