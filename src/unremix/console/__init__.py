"""What a person reads in a terminal: progress, tables, quantities in words."""
