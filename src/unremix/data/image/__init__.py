"""Images: readers of files and arrays, and stores of what they decode to."""
