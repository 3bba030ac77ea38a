from .factory import build_tables
from .interface import EmbeddingTables, Layout, TableSpec

__all__ = ["EmbeddingTables", "Layout", "TableSpec", "build_tables"]
