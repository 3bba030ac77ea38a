from .compose import ComposedConfig, compose_job
from .signature import compute_signature, signature_fields

__all__ = [
    "ComposedConfig",
    "compose_job",
    "compute_signature",
    "signature_fields",
]
