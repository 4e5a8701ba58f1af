"""Words, numbers and commands as a person reads them."""
