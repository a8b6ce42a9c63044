"""From declarations to Spark queries: graph, schemas, sources, tables, and what is wrong with them."""
