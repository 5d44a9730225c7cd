"""How views become anchors and candidates: one module per framework."""
