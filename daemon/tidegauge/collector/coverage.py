"""Which bytes of a file are here, as one column: `int8multirange` on PostgreSQL, a JSON list of pairs on SQLite."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Dialect, TypeDecorator
from sqlalchemy.dialects.postgresql import INT8MULTIRANGE, Range
from sqlalchemy.dialects.postgresql.ranges import MultiRange
from sqlalchemy.types import TypeEngine

from tidegauge.link.ranges import Ranges


class Coverage(TypeDecorator[Ranges]):
    """In Python sorted, disjoint, half-open `(start, stop)`, on either database."""

    impl = JSON
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        kind: TypeEngine[Any] = INT8MULTIRANGE() if dialect.name == "postgresql" else JSON()
        return dialect.type_descriptor(kind)

    def process_bind_param(self, value: Ranges | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        if dialect.name == "postgresql":
            return MultiRange([Range(start, stop) for start, stop in value])
        return [list(pair) for pair in value]

    def process_result_value(self, value: Any, dialect: Dialect) -> Ranges | None:
        if value is None:
            return None
        if dialect.name == "postgresql":
            return tuple((part.lower, part.upper) for part in value)
        return tuple((start, stop) for start, stop in value)
