"""Alembic's entry: it executes this file for every command. The database comes from `bellglass.server.db.migrate`."""

from alembic import context

from bellglass.server.db.engine import WRITER, open_engine
from bellglass.server.db.tables import metadata

engine = open_engine(context.config.attributes["database"])
try:
    with engine.connect().execution_options(**{WRITER: True}) as connection:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            transaction_per_migration=True,
            render_as_batch=True,
        )
        with context.begin_transaction():
            context.run_migrations()
finally:
    engine.dispose()
