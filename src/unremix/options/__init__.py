"""The options of a run, extensions that a user names, and settings that ship with the package."""
