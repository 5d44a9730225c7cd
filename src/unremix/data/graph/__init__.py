"""Graphs: readers, node features and a store that gives batches."""
