"""What is examined: a file for each property, of the same name."""
