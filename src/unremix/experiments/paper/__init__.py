"""The paper's tables and figures: what they are stands in YAML, how they are made in Python."""
