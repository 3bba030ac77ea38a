from .compose import ComposedConfig as ComposedConfig
from .compose import compose_job as compose_job
from .signature import compute_signature as compute_signature
from .signature import signature_fields as signature_fields
