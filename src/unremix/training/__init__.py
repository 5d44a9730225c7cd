"""Training: the options of a run, its folder, the loop, and what becomes of the encoder."""
