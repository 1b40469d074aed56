"""Will it work? Small pure functions from a subject (stack, lock, facts, host) to findings."""
