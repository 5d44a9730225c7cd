"""Training: the folder of a run, the loop, and what becomes of the encoder."""
