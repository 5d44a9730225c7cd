"""Which negatives are probably false, found without labels; see docs/signals.md."""
