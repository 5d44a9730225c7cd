"""Reading and writing: archives, URLs, whole files, locks, bounds."""
