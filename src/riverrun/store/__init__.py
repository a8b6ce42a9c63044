"""Result topics as live tables that people query: embedded (DuckDB) or a real Druid, behind one contract."""
