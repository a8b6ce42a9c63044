"""From declarations to Spark queries: graph, schemas, sources, tables, and diagnostics."""
