"""A plugin of pytest that prepares SQLAlchemy's suite for a database without autoincrement.

It makes `ignite://` known, also where the project is not installed. Columns whose numbers the suite
leaves to the database get a default of Python, which counts.
"""

from sqlalchemy import ColumnDefault, Table, event, func, select

import ignitetf.sqlalchemy  # noqa: F401


@event.listens_for(Table, "after_parent_attach")
def count_in_python(table, metadata):
    column = table.autoincrement_column
    if column is None or column.default is not None or column.server_default is not None:
        return
    latest = [None, 0]

    def count(context):
        if latest[0] is not context:
            found = context.root_connection.scalar(select(func.max(column)))
            latest[:] = context, found or 0
        latest[1] += 1
        return latest[1]

    column.default = ColumnDefault(count)
    column.default._set_parent(column)
