"""An image goes to a registry, with the evidence of what it is and how it was made."""
