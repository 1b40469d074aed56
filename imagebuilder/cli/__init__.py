"""One thin file per verb; what they share is in `main`, `context` and `report`."""
