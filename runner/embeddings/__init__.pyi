from .factory import build_tables as build_tables
from .interface import EmbeddingTables as EmbeddingTables
from .interface import Layout as Layout
from .interface import TableSpec as TableSpec
