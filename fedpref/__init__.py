"""FedPref: federated preference learning for structured radiology report extraction."""

__version__ = "0.1.0"
