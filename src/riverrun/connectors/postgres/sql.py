"""Names and texts as SQL, for the statements that we run and those that we suggest."""

# Postgres refuses these as the name of a table or a column without quotes (pg_get_keywords, categories R and T).
_RESERVED = """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation column
    concurrently constraint create cross current_catalog current_date current_role current_schema current_time
    current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze from
    full grant group having ilike in initially inner intersect into is isnull join lateral leading left like limit
    localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary references
    returning right select session_user similar some symmetric system_user table tablesample then to trailing true union
    unique user using variadic verbose when where window with
"""
RESERVED = frozenset(_RESERVED.split())


def quoted(name: str) -> str:
    """A name as SQL: in quotes if Postgres would read it as something else without."""
    plain = name.isascii() and name.islower() and name.replace("_", "a").isalnum() and not name[0].isdigit()
    return name if plain and name not in RESERVED else '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """A table with its schema, as in `public.houses`, as SQL."""
    schema, _, table = name.partition(".")
    return f"{quoted(schema)}.{quoted(table)}"


def sql_literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
