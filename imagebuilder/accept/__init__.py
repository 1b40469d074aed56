"""Proves an image: smoke, baseline, EAGLE-3, verdict, report."""
