"""The composed config: what its keys may hold, and errors that say so in one line."""
