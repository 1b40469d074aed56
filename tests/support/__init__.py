"""What several test folders use: real engines, real registries."""
