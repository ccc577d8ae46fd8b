"""The paper's tables and figures, number by number."""
