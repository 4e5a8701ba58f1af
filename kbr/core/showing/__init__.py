"""What filters and their answers show of themselves: scores, tables, pictures, a summary."""
