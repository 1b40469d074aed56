"""The embedded builder: plan → image in pure Python, without a daemon, without root, without Docker."""
