"""Contrastive losses with weighted negatives."""
