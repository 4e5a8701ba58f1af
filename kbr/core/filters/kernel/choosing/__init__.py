"""Settings by search, and error bars, both from steps that were held out."""
