"""One reader for each kind of file: what it holds, as named columns."""
