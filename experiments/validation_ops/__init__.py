"""The operators of the cost model held against measured kernel times."""
