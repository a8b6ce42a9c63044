"""riverrun's SQL: one read-only language for users, checked here and then written as each store understands it."""

from riverrun.store.sql.prepare import Latest, Output, Prepared, describe, prepare
from riverrun.store.sql.vocabulary import vocabulary

__all__ = ["Latest", "Output", "Prepared", "describe", "prepare", "vocabulary"]
