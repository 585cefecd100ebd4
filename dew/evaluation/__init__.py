"""Evaluation: metrics as mergeable sums, and one pass over finite batches."""

from dew.evaluation.metric import Metric
from dew.evaluation.perplexity import Perplexity
from dew.evaluation.pixels import Reference
from dew.evaluation.run import Evaluation, evaluate

__all__ = ["Evaluation", "Metric", "Perplexity", "Reference", "evaluate"]
