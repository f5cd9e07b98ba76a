"""From answers to numbers: counts, scores, intervals, round selection; extraction needs torch."""

from fedpref.evaluation.bootstrap import paired_cluster_bootstrap
from fedpref.evaluation.metrics import micro_f1
from fedpref.evaluation.selection import select_round

__all__ = ["micro_f1", "paired_cluster_bootstrap", "select_round"]
