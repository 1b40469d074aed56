"""An existing environment, image or container → a stack file and a lock that rebuild it: the way back."""
