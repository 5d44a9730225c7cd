"""Evaluation: how good frozen features are, and how healthy the embeddings."""

from unremix.evaluation.accuracy import Accuracy
from unremix.evaluation.health import Health, effective_rank, health, warnings_of
from unremix.evaluation.knn import knn_accuracy, knn_predict, leave_one_out_knn
from unremix.evaluation.linear import LinearResult, linear_probe

__all__ = [
    "Accuracy",
    "Health",
    "LinearResult",
    "effective_rank",
    "health",
    "knn_accuracy",
    "knn_predict",
    "leave_one_out_knn",
    "linear_probe",
    "warnings_of",
]
