"""A stream as a page in the browser while it is filtered: `kbr-filter run=... --serve`."""
