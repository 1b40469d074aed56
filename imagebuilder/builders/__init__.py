"""Plan → image: `direct` needs nothing but Python, `docker` an engine; `verify` builds again and compares."""
