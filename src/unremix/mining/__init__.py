"""Hard negatives for anchors out of a corpus, and the index they are found with."""
