"""Views: what the encoder sees of a sample, drawn anew in every epoch."""
