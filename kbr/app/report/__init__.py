"""report.html and the tables in it."""
