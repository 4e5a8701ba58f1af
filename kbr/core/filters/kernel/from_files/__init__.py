"""The filter of recordings that stay in their files: pairs, passes over them, what goes on."""
