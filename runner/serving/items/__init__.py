"""The items of an exported retrieval model: ids, vectors, and the nearest to a query."""
