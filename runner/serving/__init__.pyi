from .artifact import Artifact, open_artifact
from .scorer import Scorer

__all__ = ["Artifact", "Scorer", "open_artifact"]
