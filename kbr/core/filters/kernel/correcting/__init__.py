"""The linear correction of means: its form, and how it is learned."""
