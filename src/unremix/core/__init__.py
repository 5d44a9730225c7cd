"""The paper's equations in torch: pairs, scores, weights, objectives and their evaluation."""
