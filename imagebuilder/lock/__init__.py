"""Exactly what is used: a Stack resolved to files and their sha256."""
