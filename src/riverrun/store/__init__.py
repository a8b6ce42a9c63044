"""Result topics as tables that people query while they move: embedded (DuckDB), or a real Druid; one contract."""
