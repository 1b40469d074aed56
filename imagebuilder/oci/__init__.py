"""Image values, layers, layout, registry transport: the OCI specifications in Python."""
