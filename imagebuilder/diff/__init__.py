"""Two of anything (stacks, locks, images) → what is different, and what that means."""
