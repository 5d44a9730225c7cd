"""The paper's tables and figures as data: ``unremix reproduce``."""
