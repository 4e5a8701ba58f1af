"""Settings and error bars of the moving filter, by rows that its regressions do not know."""
