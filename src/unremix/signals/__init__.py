"""Which negatives are probably false, told without labels; see docs/signals.md."""
